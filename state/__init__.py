"""Keyed state: stores, layers and checkpoints."""
