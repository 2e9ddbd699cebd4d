"""The audit log: one line per publish, in segments that the report reads.

`record` renders lines, `writer` takes them from the publish path and keeps what the `policy` promises, `scribe` is
the thread that writes them, `journal` chooses the segment, `segments` are files and their names, `closing` compresses
and shows them, `retention` removes the oldest.
"""
