"""Collections: updates (key, value, time, diff) in traces of immutable layers."""
