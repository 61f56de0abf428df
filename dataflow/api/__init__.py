"""The API with which a user writes a flow, and the plan that follows from it."""
