"""Files as a source and a sink, by the public interface."""
