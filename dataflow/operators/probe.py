"""The probe: passes its inputs on, so that `meander status` can show the frontier at its place.

A loop exit is a probe too: its edge changes the times. A merge is a probe with several inputs. Its
records keep their times and places, so an operator behind it sorts them as those of one source.
"""

from __future__ import annotations

from collections.abc import Sequence

from meander.dataflow.operators.ports import BaseOperator, InputPort, OutputPort


class Probe(BaseOperator):
    """A probe that shows the frontier at its place on one worker, under its name in `status`."""

    def __init__(self, inputs: Sequence[InputPort], output: OutputPort) -> None:
        self._inputs, self._output = inputs, output

    def schedule(self) -> bool:
        """Pass messages on, unless earlier ones still wait. Return whether any passed."""
        passed = False
        for source in self._inputs:
            for message in source.drain() if not self._output.blocked() else ():
                passed = True
                with self._output.mint(message) as capability:
                    self._output.send(capability, message.time, message.payload)
        return passed
