"""Rules files and settings: YAML to checked, compiled rules. Owner of yaml. Nothing here asks a broker.

Reading: `faults` and `nodes` (what was written, and where), `document` (the strict parser), `fields`, `arguments`,
`clock`, `message` (typed values out of nodes). Configuration: `kinds`, `declaration`, `environment`, `settings`. Rules:
`schema` (one file), `lint` (files together), `compiler` (into the routing room), `loader` (all of it), `model` (the
result), `remotes` (address table and other brokers). Questions of operators: `expectations` (tests in files),
`inspection` (check), `explanation` and `tracing` (explain).
"""
