"""Starting the next execution: claims, checkpoints, decisions, and what no execution names."""
