"""The internal topics of a flow."""
