"""Messages and decisions of the control plane."""
