"""Translates bindings between their two spellings: the readable keys of rules files, and open-exchange arguments.

`lines` defines the readable spelling and translates the lines of one binding. `conversion` translates whole files.
"""
