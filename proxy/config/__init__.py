"""Reads the configuration file and environment variables into `Settings` and reports every error with its line.

`settings`: every key with its default, one model per section. `loader`: loads and checks a configuration, compares it
with the current file, and lists the rules files that it names. `secrets`: reads passwords, secrets and keys from the
places that the configuration names. `keys`: lists keys for the documentation, compares them, and overrides them by
environment variables, independently of particular keys.
"""
