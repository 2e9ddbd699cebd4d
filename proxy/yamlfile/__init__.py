"""YAML files of operators, read strictly and with the position of every value. Only this package imports PyYAML.

`document` parses a file into nodes (scalars, sequences and mappings with file, line and column) and collects errors.
`models` validates nodes with pydantic and reports its errors at their positions; it defines the value types: names,
durations, passwords. `hosts` parses and compares host and port. `secret_sources` reads secrets from the environment or
from files; `masking` hides secrets in the text of a file.
"""
