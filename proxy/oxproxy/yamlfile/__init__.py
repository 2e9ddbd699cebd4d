"""Reads YAML files strictly, and records the position of every value. Only this package imports PyYAML.

Configuration, rules and test files are all read in the same way: `document.read_document`, then `models.read_model`.
The models are also the source of the JSON Schemas, of the table in docs/reference/configuration.md, and of the schema
of the chart's values.

`document` parses a file into nodes (scalars, sequences and mappings with file, line and column) and collects errors.
`models` validates nodes with pydantic, reports errors at their positions, and defines the types of values, such as
names, durations and passwords. `hosts` parses and compares hosts and ports. `secret_sources` reads secrets from the
environment or from files. `masking` hides secrets in the text of a file. `writing` writes nodes as YAML.
"""
