"""A worker: its loop and its operators."""
