"""The configuration file and the environment over it, read into `Settings`, with every fault at its line.

`settings`: every key with its default, and how a configuration is loaded and checked. `keys`: how a key is declared,
read, listed for the documentation, compared and overridden by a variable; it knows no key by name.
"""
