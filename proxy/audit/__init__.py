"""The audit log: one JSON line per publish, in segments that the report reads.

- `record`: the format of a line, which fields are hashed or shown, the log as a producer connection sees it.
- `writer`: policy (mode, sizes), buffering in the event loop, back-pressure, which lines are on disk.
- `writer_thread`: the thread that writes batches (group commit, retries) and decides when a segment ends.
- `segments`: files of a segment, their names, compression, the lock that keeps instance names apart.
- `retention`: the thread that compresses closed segments and removes those too old or too many.
"""
