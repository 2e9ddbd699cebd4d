"""YAML files of operators, read strictly and with the place of every value. Only this package imports PyYAML.

`document` parses a file into nodes (scalars, sequences and mappings that know file, line and column) and collects
faults. `models` validates nodes with pydantic and reports its errors at their places; it has the types of values:
names, durations, passwords. `hosts` has host and port of a connection. `secret_sources` reads secrets that are kept
elsewhere; `masking` hides those in the text of a file.
"""
