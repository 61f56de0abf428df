"""A registry of schemas: its client, and formats with the id of a schema."""
