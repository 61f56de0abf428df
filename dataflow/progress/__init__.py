"""Progress tracking: pointstamps, capabilities, frontiers, membership."""
