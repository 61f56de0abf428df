"""Backpressure: credit, bytes in flight, memory limits and the throttle of moves."""
