"""Checkpoints and records in flight as they lie on their topics."""
