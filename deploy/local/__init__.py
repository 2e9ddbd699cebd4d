"""Programs for this machine: set-up (``setup``, ``pins``), the demo (``demo``), and running with a given broker
(``run``).
"""
