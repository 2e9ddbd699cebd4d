"""Creates a report (tables and HTML pages) from the audit log, with Spark and DuckDB.

Only the command line imports this package.

`request` describes a run, and `job` executes it. `session` starts Spark and its jobs. `files.storage` finds the log's
files on any file system that Hadoop supports. In tasks, `partials` aggregates segments, `hours` merges the partials
into hours, and `days` creates the tables of a day from its hours. `store` keeps the hours in the output directory.
`tables` puts the tables of a day in place. `figures` reads the data of a page from the tables. `pages` renders the
`templates`, using `charts` and `wording`, and writes and links the pages. `trace` finds one message in the log, and
`query` runs SQL on the tables. `progress` shows what a run is doing. `backtest` judges candidate rules on recorded
publishes. The SQL statements are in the directory `sql`.
"""
