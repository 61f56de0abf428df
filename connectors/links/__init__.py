"""Links between the members of a flow."""
