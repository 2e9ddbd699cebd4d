"""Runs the sidecar process: assembles it according to the configuration, reloads rules, and drains.

Only this package imports uvloop.

- `process`: the process of `oxproxy serve`, which reads all files and runs a sidecar; `exit_status`: how it ends.
- `sidecar`: a sidecar from start to drain, with start order, readiness and status. Start reading here.
- `composition`: converts sections of the configuration to the arguments of other packages.
- `reload`: reloads the rules on request, on SIGHUP and when files change.
- `reload_units`: divides the rules files into units that are reloaded together.
- `shadow`: compares a second set of rules with the active rules on live traffic.
"""
