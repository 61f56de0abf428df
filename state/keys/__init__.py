"""Bins of keys, and identifiers."""
