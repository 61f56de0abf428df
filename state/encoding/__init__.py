"""Values and states as bytes."""
