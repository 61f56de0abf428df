"""Messages between the driver and its workers, registration, and launch arguments."""
