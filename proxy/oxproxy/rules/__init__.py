"""Parses rules files, records the position of every value, checks and compiles the files as one set, runs their tests
and explains routing. This package never connects to a broker.

Reading: `schema` defines the models of a file's keys and reads a file into parsed exchanges, bindings and queues.
`addresses` reads the address table and the definitions of other brokers, `message` reads the message of a test or of
``oxproxy explain``, `file_tests` reads tests, and `field_values` reads arguments and times.

Compiling: `loader` is the entry point. It compiles all files to `LoadedRules` or reports all their errors. `compiler`
compiles one exchange and maps rejections to the lines that cause them. `ruleset` defines the result, as plain data. The
package `lint` contains the warnings and the checks that involve several files.

The package `spelling` translates bindings between the readable spelling and the arguments that clients declare.

Using: `evaluation` computes where a message is routed, `explain` explains why, `wire` lists what is sent to brokers;
`overview` lists all exchanges with their bindings; `operator_reference` describes all operators; `comparison` compares
two sets of rules on live publishes (``oxproxy shadow``); `watch` detects changed files; `import_definitions` writes a
rules file from a broker's definitions.
"""
