"""The resources of a worker: where it runs, its cores and its memory (Trisk, 3.1).

Guarantees that cores and memory of a worker never change: another worker takes its place instead.
So a worker fits only where both are equal, while a place may leave a choice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from meander.schemas.option_values import checked_text, checked_whole

UNITS: Final = "bkmgt"
"""The units of a size, each 1024 times the one before: bytes, KiB, MiB, GiB, TiB."""
MIN_MEMORY: Final = 16 << 20
"""The least memory of a worker in bytes; with less, batches of usual size would not fit."""


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of one worker. Empty names leave the choice of the place to Spark."""

    host: str = ""
    """The host of its executor."""
    executor: str = ""
    """Spark's id of its executor."""
    cores: int = 1
    """The slots of its executor that it takes."""
    memory: int = 0
    """The bytes of its states and of the records on their way; 0 for the flow's own settings."""

    def __post_init__(self) -> None:
        """Raise SetupError for a wrong option."""
        checked_text("Resources", "host", self.host)
        checked_text("Resources", "executor", self.executor)
        checked_whole("Resources", "cores", self.cores, 1)
        checked_whole("Resources", "memory", self.memory, 0, unit="bytes")

    def __str__(self) -> str:
        """Return the resources in words.

        >>> str(Resources("a", "3")), str(Resources("a")), str(Resources())
        ('executor 3 on host a', 'host a', 'any executor')
        >>> str(Resources("a", cores=2, memory=3 << 29))
        'host a with 2 cores and 1536m of memory'
        """
        if self.host and self.executor:
            place = f"executor {self.executor} on host {self.host}"
        elif self.executor:
            place = f"executor {self.executor}"
        else:
            place = f"host {self.host}" if self.host else "any executor"
        return f"{place} with {self.amounts}" if self.amounts else place

    @property
    def amounts(self) -> str:
        """The cores and the memory in words; '' for one core and the flow's settings.

        >>> Resources(cores=2, memory=2 << 30).amounts, Resources("a").amounts
        ('2 cores and 2g of memory', '')
        """
        cores = f"{self.cores} cores" if self.cores > 1 else ""
        memory = f"{size_text(self.memory)} of memory" if self.memory else ""
        return " and ".join(filter(None, [cores, memory]))

    @property
    def place(self) -> Resources:
        """The place alone.

        >>> Resources("a", cores=2).place == Resources("a")
        True
        """
        return Resources(self.host, self.executor)

    @property
    def needs_place(self) -> bool:
        """Whether not any free slot will do.

        >>> Resources(memory=1 << 30).needs_place, Resources(cores=2).needs_place
        (False, True)
        """
        return self.place != ANYWHERE or self.cores > 1

    def at(self, place: Resources) -> Resources:
        """Return the same cores and memory at a place.

        >>> Resources("a", cores=2).at(ANYWHERE) == Resources(cores=2)
        True
        """
        return replace(self, host=place.host, executor=place.executor)

    def admits(self, place: Resources) -> bool:
        """Return whether a worker with these resources may run at a place.

        >>> Resources("a", cores=2).admits(Resources("a", "3")), Resources("b").admits(Resources())
        (True, False)
        """
        return self.host in ("", place.host) and self.executor in ("", place.executor)

    def allows(self, actual: Resources) -> bool:
        """Return whether a worker that runs with `actual` resources fits.

        >>> Resources("a").allows(Resources("a", "3")), Resources("b").allows(Resources("a", "3"))
        (True, False)
        >>> Resources("a").allows(Resources("a", "3", cores=2))
        False
        """
        same = (self.cores, self.memory) == (actual.cores, actual.memory)
        return same and self.admits(actual)


ANYWHERE: Final = Resources()
"""The resources of a worker that may run anywhere, with one core."""


def size_text(size: int) -> str:
    """Return a number of bytes in the largest unit that divides it.

    >>> size_text(2 << 30), size_text(3 << 29), size_text(1025)
    ('2g', '1536m', '1025b')
    """
    unit = 0
    while size and size % 1024 == 0 and unit < len(UNITS) - 1:
        size, unit = size // 1024, unit + 1
    return f"{size}{UNITS[unit]}"


def size_of(text: str) -> int:
    """Return the bytes of a size such as 512m; a number alone is bytes. Raises ValueError.

    >>> size_of("2g") == 2 << 30, size_of("2G") == 2 << 30, size_of("7"), size_of("7b")
    (True, True, 7, 7)
    """
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "b")
    if unit not in UNITS or not (number.isascii() and number.isdecimal()):
        raise ValueError(f"{text!r} is no size such as 512m or 2g")
    return int(number) << 10 * UNITS.index(unit)
