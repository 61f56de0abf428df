"""Simulated workers, clock, network and faults."""
