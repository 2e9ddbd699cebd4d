"""The command ``oxproxy``: one module per command, with its arguments, exit status and output.

`main` imports and runs only the module of the given command. `commands` has the description, examples and exit statuses
of every command, from which help, man page and docs/reference/cli.md are generated. `console` is shared by commands:
exit statuses, standard output and standard error, input files, width.

A running sidecar: `serve`; `status`, `top`, `tail`, `routes`, `rules`, `explain` and `shadow` query one, including each
of its workers, by `admin_client`; `top` and `status` read its metrics by `metrics_page`. Files: `check` (its results
are in `findings`; `check_broker` is for ``--broker``, `check_formats` for ``--format``), `explain` (with `explain_tree`
for terminals), `routes`, `schema`, `init`, `import_rules` (the command ``import``). Help: `operators`, `completion`.
Leftovers of sidecars on a broker: `cleanup`, `adopt`. Audit logs: `report`, `trace`.
"""
