"""What it costs to keep a collection up to date: traces, the engine, and the way through Kafka."""
