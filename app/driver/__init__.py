"""The driver of a flow: its loop, its lease, commands and rescaling."""
