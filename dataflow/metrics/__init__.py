"""Histograms, operator latency and the stall log."""
