"""Topics in memory, for flows on simulated workers."""
