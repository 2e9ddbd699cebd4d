"""YAML files of operators, read strictly and with the place of every value. Only this package imports PyYAML.

`document` parses a file into nodes (scalars, sequences and mappings that know file, line and column) and collects
faults. `fields` reads the keys of a mapping as strings, names, numbers and lists. `kinds` reads one value of
the configuration: addresses, durations, passwords, words. `masking` hides the secrets in the text of a file.
"""
