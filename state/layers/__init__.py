"""Layers of a bin on the state topic."""
