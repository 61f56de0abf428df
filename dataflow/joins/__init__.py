"""Joins of two keyed streams by own times: which records pair, how long they wait, what is left."""
