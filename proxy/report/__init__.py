"""Creates a report (tables and HTML pages) from the audit log, with Spark and DuckDB.

Only the command line imports this package.

`request` describes a run, and `job` executes it. `storage` finds the log's files on any file system that Hadoop
supports. `partials` aggregates each file in a Spark task, and `store` keeps the partials in the output directory.
`merge` creates the tables for a day from the partials, and `tables` puts the tables in place. `selection` reads the
data of a page (`figures`) from the tables. `page` renders the `templates`, using `charts` and `wording`, and `pages`
writes and links the pages. `trace` finds one message in the log. `session` starts Spark. The SQL statements used by
`partials`, `merge` and `selection` are in the directory `sql`.
"""
