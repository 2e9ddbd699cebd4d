"""The configuration file and the environment over it, read into `Settings`, with every fault at its line.

`settings`: every key with its default, one model per section. `loader`: loads and checks a configuration, compares
it with the file as it is now, and lists the rules files that it names. `secrets`: reads passwords, secrets and keys
from the places that the configuration names. `keys`: keys listed for the documentation, compared, and overridden by
environment variables; it knows no key by name.
"""
