"""Programs for this machine: set-up (``setup``, ``pins``), demo (``demo``), ``run`` with a given broker."""
