"""What windows cost beside a fold without windows."""
