"""What windows, tables and joins cost, beside a plain fold."""
