"""The resources of a worker: where it runs (Trisk, 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Resources:
    """The place where a worker runs. Empty fields leave the choice to Spark."""

    host: str = ""
    """The host of its executor."""
    executor: str = ""
    """Spark's id of its executor."""

    def __str__(self) -> str:
        """Return the place in words.

        >>> str(Resources("a", "3")), str(Resources("a")), str(Resources())
        ('executor 3 on host a', 'host a', 'any executor')
        """
        if self.host and self.executor:
            return f"executor {self.executor} on host {self.host}"
        if self.executor:
            return f"executor {self.executor}"
        return f"host {self.host}" if self.host else "any executor"

    def allows(self, actual: Resources) -> bool:
        """Return whether a worker that runs with `actual` resources fits.

        >>> Resources("a").allows(Resources("a", "3")), Resources("b").allows(Resources("a", "3"))
        (True, False)
        """
        return self.host in ("", actual.host) and self.executor in ("", actual.executor)


ANYWHERE: Final = Resources()
"""The resources of a worker that may run anywhere."""
