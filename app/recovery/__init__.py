"""Recovery: claims, restarts, the checkpoint index, the decision log and orphan cleanup."""
