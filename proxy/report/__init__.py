"""The report: what the audit log amounts to, as tables and as a page. Spark and DuckDB; no other package imports it.

`request` is what was asked for, `job` answers it. `storage` finds the files of the log; `partials` turns one of them
into small aggregates, in Spark's tasks; `store` keeps those in the output directory; `merge` makes the tables of a day
from them, `tables` puts these in place. `selection` picks from the tables what a page shows (`figures`); `page` fills
the `templates` with it, by means of `charts` and `wording`, and `pages` puts pages in place and links them. `trace`
finds one message in the log. `session` starts Spark, `storage` is every file system that Hadoop knows. The statements
of `partials`, `merge` and `selection` lie in `sql`.
"""
