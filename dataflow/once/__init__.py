"""Exactly once: each result leaves in one transaction of its worker, in one life of the flow."""
