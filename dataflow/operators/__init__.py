"""Operators of a running flow."""
