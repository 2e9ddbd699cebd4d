"""Rules as a library, without a broker or a sidecar.

`rule_set` loads rules files and explains messages; `oxproxy` exports its names. `pytest_plugin` contains the fixture
for tests of rules.
"""
