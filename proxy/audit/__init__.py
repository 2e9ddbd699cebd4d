"""One line per publish, in segments."""
