"""Windows of keyed streams: which records they hold, when they close, and what they give."""
