"""Queries by Spark SQL over the states and topics of a flow."""
