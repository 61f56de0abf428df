"""The demo with the flights of 2013."""
