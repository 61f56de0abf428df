"""What flow control of a part of a flow costs, and what it saves."""
