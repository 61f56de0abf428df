"""The coordinator's part in the dataflow."""
