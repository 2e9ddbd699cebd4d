"""Creates a report (tables and HTML pages) from the audit log, with Spark and DuckDB.

Only the command line imports this package.

`request` describes a run, and `job` executes it. `session` starts Spark. `storage` finds the log's files on any file
system that Hadoop supports. `partials` aggregates each file in a Spark task, and `store` keeps the partials in the
output directory. `tables` creates the tables for a day from the partials, and puts them in place. `figures` reads the
data of a page from the tables. `pages` renders the `templates`, using `charts` and `wording`, and writes and links the
pages. `trace` finds one message in the log. The SQL statements are in the directory `sql`.
"""
