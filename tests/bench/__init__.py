"""The benchmark behind `make bench`: ratios against the broker itself, measured in one run.

- `publishes`  the bytes of the messages, built before anything is timed
- `confirms`   counting the broker's acks without a client library
- `link`       a blocking AMQP connection: handshake, declares
- `generator`  one producer as a process of its own
- `processes`  CPU time and memory of a process; HAProxy and the sidecar as children
- `arrangement` exchanges, queues and rules files that the cases publish to
- `cases`      the rows of the table: what is compared with what, and what must be reached
- `memory`     idle sidecar, idle connections, one very large message
- `report`     medians, the printed table, the JSON file
- `profile`    one case for some seconds against a sidecar that already runs
"""
