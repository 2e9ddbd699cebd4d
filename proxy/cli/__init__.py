"""The command ``oxproxy``: one module per command, with its arguments, exit status and output.

`main` imports and runs only the module of the given command. `commands` has the description, examples and exit statuses
of every command, from which help, man page and docs/reference/cli.md are generated. `console` is shared by commands:
exit statuses, standard output and standard error, input files, width.

`serve` runs a sidecar. `status`, `top`, `tail`, `routes`, `rules`, `explain` and `shadow` query a running sidecar with
all its workers through `admin_client`; `top` and `status` read its metrics with `metrics_page`. Commands for files:
`check` (results in `findings`; `check_broker` is for ``--broker``, `check_formats` for ``--format``), `explain` (with
`explain_tree` for terminals), `routes`, `schema`, `init`, `import_rules` (the command ``import``). Help: `operators`,
`completion`. Objects left on a broker: `cleanup`, `adopt`. Audit logs: `report`, `trace`.
"""
