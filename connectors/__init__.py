"""The outside of a flow: Kafka, the links between workers, Spark."""
