"""The policies of a running flow: their metrics, their calls, and the guards around both."""
