"""Exit statuses of ``oxproxy serve``, which service managers use to decide whether to restart it."""

#: Drained; internal error; invalid configuration or rules, an address that can't be bound, or a refusal by the broker.
EXIT_OK, EXIT_BROKEN, EXIT_FAULTY = 0, 1, 2
