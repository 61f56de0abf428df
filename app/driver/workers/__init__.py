"""The workers of a flow as the driver sees them, and their Spark jobs."""
