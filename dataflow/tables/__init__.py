"""Tables: joins with them as of logical time, and their changes."""
