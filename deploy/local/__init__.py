"""On this machine: the set-up (``setup``, ``pins``), the demo (``demo``), ``run`` against a given broker."""
