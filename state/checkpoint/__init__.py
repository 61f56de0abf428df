"""Checkpoints and in-flight records on their topics."""
