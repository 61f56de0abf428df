"""Kafka topics as Spark DataFrames."""
