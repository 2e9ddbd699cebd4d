"""The command ``oxproxy``: one module per command, with its arguments, exit status and output.

`main` runs the module of the command that was typed; no other command's module is imported. `commands` has the
description, examples and exit statuses of every command, from which help, man page and docs/reference/cli.md are made.
`console` has what commands share: exit statuses, standard output and standard error, input files, width.

A running sidecar: `serve`; `status`, `top`, `tail`, `routes`, `rules`, `explain` and `shadow` ask one, each of its
workers, by `admin_client`; `top` and `status` read its metrics by `metrics_page`. Files: `check` (its results are in
`findings`; `check_broker` is for ``--broker``, `check_formats` for ``--format``), `explain` (with `explain_tree` for
terminals), `routes`, `schema`, `init`, `import_rules` (the command ``import``). Help: `operators`, `completion`. What
sidecars left on a broker: `cleanup`, `adopt`. Audit logs: `report`, `trace`.
"""
