"""The engine: logical time, progress, operators, migration, and what a flow is written with."""
