"""The PySpark job over audit segments; imported by nobody but the command line."""
