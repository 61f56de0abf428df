"""The API for users who write a flow, and the plan of a flow."""
