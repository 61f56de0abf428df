"""The dataflow graph and its path summaries."""
