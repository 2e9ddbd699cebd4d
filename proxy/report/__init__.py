"""Creates the report, which consists of tables and a page, from the audit log, with Spark and DuckDB. Only the command
line imports this package.

`request` describes a run, and `job` executes it. `storage` finds the files of the log, `partials` aggregates each file
in Spark's tasks, and `store` keeps the partials in the output directory. `merge` makes the tables of a day from the
partials, and `tables` puts the tables in place. `selection` picks the rows for a page (`figures`) from the tables.
`page` renders the `templates`, using `charts` and `wording`, and `pages` writes and links pages. `trace` finds one
message in the log. `session` starts Spark. `storage` supports every file system that Hadoop supports. The SQL
statements of `partials`, `merge` and `selection` are in `sql`.
"""
