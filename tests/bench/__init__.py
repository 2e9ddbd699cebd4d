"""The benchmark run by `make bench`: ratios to the broker without a sidecar, measured in one run.

- `publishes`   the bytes of the messages, built before anything is timed
- `confirms`    counting the broker's acks without a client library
- `generator`   a producer in a separate process
- `processes`   CPU time and memory of a process; HAProxy and generators as child processes
- `arrangement` exchanges, queues and rules files used by the cases
- `cases`       the cases, and the rows of the table with their targets
- `memory`      an idle sidecar, idle connections, one very large message
- `pauses`      the longest confirm latency during reloads and scrapes
- `cycles`      producers that connect, publish and disconnect
- `scale`       100,000 bindings
- `in_process`  events of the console, the metrics page and lookups of addresses, without a broker
- `report`      medians, the printed table, the JSON file
- `profile`     one case for a few seconds, with the sidecar under a profiler
"""
