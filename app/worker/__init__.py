"""A worker's process on a Spark executor."""
