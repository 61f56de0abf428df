"""Flows that come with Meander."""
