"""The state of a running flow: events, statistics, metrics and lag."""
