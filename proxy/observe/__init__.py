"""What people and machines see of a running sidecar. Owner of prometheus_client.

`metrics` names every metric, `readings` read them from plain counters, `exposition` writes the page of them
without holding the loop, `admin` serves that page and the probes over HTTP, `logs` makes lines of events.
"""
