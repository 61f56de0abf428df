"""Policies: they look at the metrics of a running flow, and propose other execution plans."""
