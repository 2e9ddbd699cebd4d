"""The running process: everything put together from the configuration, reloaded, drained. Owner of uvloop.

- `sidecar`: one process from start to drain: what is started in which order, readiness, status. Begin here.
- `composition`: sections of the configuration turned into the values that other packages take.
- `reload`: rules reloaded on request, on SIGHUP and when files change.
- `shadow`: a second rules file compared with the rules in force on live traffic.
- `workers`: the supervisor of several sidecars on one port: starts them again, forwards signals.
"""
