"""The probe: passes its input on, so that `meander status` can show the frontier at its place.

A loop exit is a probe too: its edge changes the times.
"""

from __future__ import annotations

from meander.dataflow.operators.ports import BaseOperator, InputPort, OutputPort


class Probe(BaseOperator):
    """A probe that shows the frontier at its place on one worker, under its name in `status`."""

    def __init__(self, source: InputPort, output: OutputPort) -> None:
        self._input, self._output = source, output

    def schedule(self) -> bool:
        """Pass messages on, unless earlier ones still wait. Return whether any passed."""
        passed = False
        for message in self._input.drain() if not self._output.blocked() else ():
            passed = True
            with self._output.mint(message) as capability:
                self._output.send(capability, message.time, message.payload)
        return passed
