"""What a Spark cluster needs to run the report: the program for spark-submit, and the archive beside it."""
