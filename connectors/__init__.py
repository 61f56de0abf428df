"""The outside of a flow: Kafka, the links between members, Spark."""
