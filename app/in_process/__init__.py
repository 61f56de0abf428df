"""Flows in this process: one worker with real sources, for a notebook and for development."""
