"""The coordinator: commands, closed times, workers and partition assignment."""
