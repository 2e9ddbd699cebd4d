"""Runs reports and back-tests on a Spark cluster: the programs for spark-submit, and the archive that they need."""
