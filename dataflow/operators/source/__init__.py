"""The source operator and its partitions."""
