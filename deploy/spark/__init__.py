"""Runs the report on a Spark cluster: the program for spark-submit, and the archive that it needs."""
