"""The graph of a flow and its path summaries."""
