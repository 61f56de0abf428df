"""The operators of collections: they take batches of updates, and schedule themselves by time."""
