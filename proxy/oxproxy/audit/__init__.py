"""The audit log: one JSON line per publish, in segments that the report reads.

`oxproxy.relay.records.audit_record` renders the lines.

- `policy`: settings of the log, such as its mode and the size of segments.
- `claim`: the right of one process to write with an instance name.
- `writer`: buffering in the event loop, back-pressure, and tracking of the lines that are on disk.
- `writer_thread`: the thread that writes batches (group commit, retries) and decides when a segment ends.
- `segments`: files of a segment, their names and compression, and the lock on an instance name.
- `retention`: the thread that compresses closed segments and removes old ones.
"""
