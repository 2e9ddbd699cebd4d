"""Rules files: parsed with the position of every value, checked as a set, compiled, tested, explained. Never connects
to a broker.

Reading: `schema` has the models of a file's keys and reads it into parsed exchanges, bindings and queues; `addresses`
does so for the address table and other brokers, `message` for the message of a test or of ``oxproxy explain``,
`file_tests` for tests. `field_values` reads arguments and times.

Compiling: `loader` is the entry point (all files to `LoadedRules`, or all errors in them); `compiler` compiles one
exchange and maps rejections to the lines that cause them; `ruleset` has the result as plain data; package `lint` has
the checks across files, and the warnings.

Using: `evaluation` computes where a message is routed, `explain` why, `wire` what is sent for it; `overview` lists all
exchanges with their bindings; `operator_reference` has the meaning of every operator; `comparison` compares two sets of
rules on live publishes (``oxproxy shadow``); `watch` detects changed files; `import_definitions` writes a rules file
from a broker's definitions.
"""
