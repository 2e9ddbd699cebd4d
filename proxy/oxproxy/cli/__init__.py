"""The command ``oxproxy``. Each subcommand has a module that defines its arguments, exit status and output.

`main` imports and runs only the module of the given command. `commands` contains the description, examples and exit
statuses of every command; the help texts, the man page and docs/reference/cli.md are generated from it. All commands
share `console`, which handles exit statuses, standard output and standard error, input files, and the output width.

`serve` runs a sidecar. `status`, `top`, `tail`, `routes`, `rules`, `explain` and `shadow` query running sidecars
through `admin_client`. The commands for files are `check` (with `findings` for results, `check_broker` for
``--broker``, `check_helm` for ``--values`` and `check_formats` for ``--format``), `explain`, `routes`, `schema`,
`init`, and `import_rules` (the command ``import``). `operators` and `completion` help with the syntax. `cleanup`
removes objects that sidecars created on a broker. `replay` publishes messages from a queue again (with `parked` for
their addresses, and for what the rules do with them). `report`, `trace` and `backtest` read audit logs.
"""
