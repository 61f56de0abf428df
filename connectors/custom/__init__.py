"""The public interface for sources and sinks beside Kafka."""
