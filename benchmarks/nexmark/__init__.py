"""Nexmark: eight queries and a passthrough over an auction house, beside other engines."""
