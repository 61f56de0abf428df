"""Apache Kafka on this machine: jars, Java and the broker's process."""
