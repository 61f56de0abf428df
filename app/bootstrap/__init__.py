"""Initial states from a Spark DataFrame."""
