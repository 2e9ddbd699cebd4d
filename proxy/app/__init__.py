"""Runs the sidecar process: assembles it according to the configuration, reloads rules, and drains.

Only this package imports uvloop.

- `process`: one process of `oxproxy serve`: a sidecar, a supervisor of workers, or a check of all files.
- `sidecar`: a sidecar from start to drain, with start order, readiness and status. Start reading here.
- `composition`: converts sections of the configuration to the arguments of other packages.
- `reload`: reloads the rules on request, on SIGHUP and when files change.
- `shadow`: compares a second set of rules with the active rules on live traffic.
- `workers`: the supervisor of several sidecars on the same addresses, which restarts them and forwards signals.
"""
