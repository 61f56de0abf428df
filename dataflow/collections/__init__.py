"""Collections kept up to date under changes: join and reduce over traces."""
