"""The answer of a flow to a command, from the command's events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

CommandState = Literal[
    "queued", "accepted", "completed", "aborted", "rescaling", "rescaled", "rejected"
]
_STATES: dict[str, CommandState] = {
    "queued": "queued", "accepted": "accepted", "completed": "completed", "aborted": "aborted",
    "rescaling": "rescaling", "rescaled": "rescaled",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that holds the last event of a command so far."""

    state: CommandState
    """The type of the event."""
    reason: str = ""
    """The reason of a rejection, and the remedy."""
    moved: int = 0
    """The number of moved bins, without bins that were already there."""

    @classmethod
    def of(cls, id: str, events: Sequence[Mapping[str, object]]) -> Answer | None:
        """Return the answer to a command; None where no event names it.

        An event of another command with the same id, which is rejected for that, does not count.

        >>> Answer.of("m1", [{"type": "completed", "id": "m1", "bins": 4}])
        Answer(state='completed', reason='', moved=4)
        """
        answer, moved = None, _moved(id, events)
        for event in events:
            match event:
                case {"id": name, "type": type} if name == id and type in _STATES:
                    answer = cls(_STATES[str(type)], moved=moved)
                case {"id": name, "reason": str(reason)} if name == id and answer is None:
                    answer = cls("rejected", reason)
        return answer


def _moved(id: str, events: Sequence[Mapping[str, object]]) -> int:
    """Return the number of bins moved by a command and by the migrations that it started."""
    done = [event for event in events if event["type"] == "completed"]
    own = [event for event in done if f"{event['id']}/".startswith(f"{id}/")]
    return sum(int(str(event["bins"])) for event in own)
