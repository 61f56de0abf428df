"""Live migration: scheduling at the coordinator, moves on workers."""
