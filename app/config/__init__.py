"""Settings of a cluster and options of a run."""
