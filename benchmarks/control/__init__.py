"""What it costs to change the execution plan of a running flow."""
