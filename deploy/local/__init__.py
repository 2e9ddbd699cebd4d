"""Programs for this machine: set-up (``setup``, ``pins``), the demo (``demo``), and use of a given broker (``run``)."""
