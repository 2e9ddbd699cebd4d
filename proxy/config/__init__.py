"""The configuration file and the environment over it, read into `Settings`, with every fault at its line.

`settings`: every key with its default, one dataclass per section. `loader`: loads and checks a configuration, compares
it with the file as it is now, and lists the rules files that it names. `secrets`: reads passwords, secrets and keys
from the places that the configuration names. `section_reader`: how a key is declared, read, listed for the
documentation, compared and overridden by a variable; it knows no key by name.
"""
