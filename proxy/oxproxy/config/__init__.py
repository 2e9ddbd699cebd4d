"""Reads the configuration file and environment variables into `Settings`, and reports every error with its line.

`settings` contains every key with its default, with one model per section. `loader` loads and checks a configuration,
compares it with the current file, and lists the rules files that it names. `secrets` reads passwords, secrets and keys
from the sources that the configuration names. `keys` compares keys and overrides them with environment variables; it
does not depend on particular keys.
"""
