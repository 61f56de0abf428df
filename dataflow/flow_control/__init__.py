"""Flow control for chosen parts of a flow, as a library on top of the engine."""
