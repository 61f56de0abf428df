"""The commands of `meander`."""
