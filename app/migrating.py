"""`meander migrate`: what its options mean, and how the move of bins is shown."""

from __future__ import annotations

from collections.abc import Iterator

from app.output import Output, at_millis, size
from schemas.errors import SetupError
from schemas.status import Accepted, BinMoved, CommandRejected, Completed, Event

MOST_BINS = 1 << 16
"""What a flow may have at most."""


def parse_bins(text: str) -> list[int] | str:
    """What `--bins` means: numbers and ranges, or all of them.

    >>> parse_bins("0-2,7"), parse_bins("all")
    ([0, 1, 2, 7], 'all')
    """
    if text == "all":
        return text
    bins: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            remedy = "write numbers and ranges such as 0-2,7, or all"
            raise SetupError("--bins", f"{part.strip()!r} names no bins", remedy)
        low, high = int(first), int(last if dash else first)
        if not low <= high < MOST_BINS:
            remedy = f"write ranges upwards, of numbers below {MOST_BINS}"
            raise SetupError("--bins", f"{part.strip()!r} names no bins", remedy)
        bins.extend(range(low, high + 1))
    return bins


def show(output: Output, events: Iterator[Event]) -> int:
    """Print events as they come, with a bar while bins move; the exit code."""
    with output.bar("bins") as progress:
        task = progress.add_task("waits to be accepted", total=None)
        carried, code, total = 0, 0, 0
        for event in events:
            if output.as_json:
                output.line(event.model_dump(mode="json", by_alias=True))
            match event:
                case Accepted() as accepted:
                    output.say(f"accepted: from {at_millis(accepted.time)} on")
                    total = len(accepted.bins)
                    progress.update(task, total=total, description="moving")
                case BinMoved(bytes=count):
                    carried += count
                    progress.update(task, advance=1, description=f"moving, {size(carried)}")
                case Completed() as done:
                    progress.update(task, total=done.bins, completed=done.bins)
                    there = total - done.bins - len(done.unmoved)
                    were = f" ({there} were there already)" if there else ""
                    output.say(
                        f"completed: {done.bins} bins{were}, {size(done.bytes)}, {done.ms:,.0f} ms"
                    )
                case CommandRejected(reason=reason):
                    progress.update(task, visible=False)
                    output.say(f"rejected: {reason}")
                    code = 1
    return code
