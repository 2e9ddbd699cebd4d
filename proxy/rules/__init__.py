"""Rules files: read with the place of every value, checked as a set, compiled, tested, explained. No broker is asked.

Reading: `schema` has the models of a file's keys and reads it into parsed exchanges, bindings and queues; `addresses`
does so for the address table and other brokers, `message` for the message of a test or of ``oxproxy explain``,
`file_tests` for tests. `field_values` reads arguments and times.

Compiling: `loader` is the entry point (all files to `LoadedRules`, or every fault in them); `compiler` compiles one
exchange and brings refusals back to the lines that cause them; `ruleset` has the result as plain data; package `lint`
has the checks beyond one file, and the warnings.

Using: `evaluation` says where a message goes, `explain` why, `wire` what leaves for it; `overview` lists all exchanges
with their bindings; `operator_reference` has the meaning of every operator; `comparison` compares two sets
of rules on live publishes (``oxproxy shadow``); `watch` notices changed files; `import_definitions` writes a rules file
from a broker's definitions.
"""
