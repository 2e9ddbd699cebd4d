"""The decision: bindings, operators, matching, engine. Pure; facts in, Decision out."""
