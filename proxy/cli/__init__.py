"""The command ``oxproxy``: one module per subcommand, with its arguments, exit status and output.

`main` finds the module of the subcommand that was typed and runs it; no other command's module is imported. `console`
holds what they share: exit statuses, standard output and standard error, input files.

A running sidecar: `serve`, `shadow`; `admin_client` has requests to admin ports, those of all workers. Files: `check`
(with `check_broker` for ``--broker``), `explain` (with `explain_tree` for terminals; also a running sidecar), `schema`,
`init`, `import_rules` (the subcommand ``import``). What sidecars left on a broker: `cleanup`, `adopt`. Audit logs:
`report`, `trace`.
"""
