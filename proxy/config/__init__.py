"""Reads the configuration file and environment variables into `Settings` and reports every error with its line.

`settings`: every key with its default, one model per section. `loader`: loads and checks a configuration, compares it
with the current file, and lists the rules files that it names. `secrets`: reads passwords, secrets and keys from the
sources that the configuration names. `keys`: compares keys and overrides them by environment variables; it does not
depend on particular keys.
"""
