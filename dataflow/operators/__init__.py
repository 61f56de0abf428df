"""The operators of a running flow."""
