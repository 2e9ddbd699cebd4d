"""The running process: assembly according to the configuration, reload, drain. Only this package imports uvloop.

- `sidecar`: one process from start to drain, with start order, readiness and status. Start here.
- `composition`: converts sections of the configuration to the arguments of other packages.
- `reload`: reloads the rules on request, on SIGHUP and when files change.
- `shadow`: compares a second rules file with the rules in force on live traffic.
- `workers`: the supervisor of several sidecars on one port, which restarts them and forwards signals.
"""
