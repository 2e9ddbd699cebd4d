"""Reads YAML files strictly, and records the position of every value. Only this package imports PyYAML.

`document` parses a file into nodes (scalars, sequences and mappings with file, line and column) and collects errors.
`models` validates nodes with pydantic, reports errors at their positions, and defines the types of values, such as
names, durations and passwords. `hosts` parses and compares hosts and ports. `secret_sources` reads secrets from the
environment or from files. `masking` hides secrets in the text of a file. `writing` writes nodes as YAML.
"""
