"""The application: commands, the driver, worker processes, recovery and status."""
