"""A probe: passes its input on, so that the frontier of what may still come can be read here.

The way out of a loop is no more than that: what a time becomes there is made by its edge.
"""

from __future__ import annotations

from meander.dataflow.operators.ports import BaseOperator, InputPort, OutputPort


class Probe(BaseOperator):
    """One probe on one worker; its name is how `status` shows the frontier."""

    def __init__(self, source: InputPort, output: OutputPort) -> None:
        self._input, self._output = source, output

    def schedule(self) -> bool:
        """Pass on what has come, unless what was passed on before still waits."""
        passed = False
        for message in self._input.drain() if not self._output.blocked() else ():
            passed = True
            with self._output.mint(message) as capability:
                self._output.send(capability, message.time, message.payload)
        return passed
