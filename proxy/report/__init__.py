"""The report: what the audit log amounts to, as tables and as a page. PySpark, apart from all other rooms.

`request` is what was asked for, `job` answers it, `stream` goes on answering. On the way: `source` finds the
segments, `sizing` fits Spark's settings to them, `records` reads lines, `staging` keeps what was read, `flows`,
`unroutable`, `latency`, `producers`, `continuity`, `anomalies` and `trace` make the tables out of it, `tables` puts
them in place of earlier ones. `figures` picks from the tables what `page` shows with the help of `charts` and
`wording`. `session` starts Spark, `storage` is every file system that Hadoop knows.
"""
