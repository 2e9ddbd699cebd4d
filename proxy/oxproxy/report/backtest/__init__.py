"""Back-tests: evaluates candidate rules for recorded publishes, and compares the results with the recorded results.

`job` runs a back-test. In tasks, `partials` converts segments to tables of publishes and facts, which are kept in the
output directory, and `judge` evaluates the rules with the decision engine, once for each distinct combination of
exchange, facts and other tested values. `result` combines the results of the tasks. `page` renders them.
"""
