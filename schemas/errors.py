"""The one error that Meander raises on purpose.

Every message names the object, the cause and the remedy, in that order. So a reader of a terminal
finds the next step.
"""

from __future__ import annotations


class MeanderError(Exception):
    """An expected failure that names its object, its cause and the remedy.

    >>> print(MeanderError("topic 'flights'", "it does not exist", "create it"))
    topic 'flights': it does not exist; create it.
    """

    exit_code = 1

    def __init__(self, subject: str, cause: str, remedy: str = "") -> None:
        self.subject, self.cause, self.remedy = subject, cause, remedy
        super().__init__(f"{subject}: {cause}" + (f"; {remedy}." if remedy else "."))

    def __reduce__(self) -> tuple[type[MeanderError], tuple[str, str, str]]:
        """Pickle the error by its three parts.

        >>> import pickle
        >>> print(pickle.loads(pickle.dumps(SetupError("topic 'flights'", "it does not exist"))))
        topic 'flights': it does not exist.
        """
        return type(self), (self.subject, self.cause, self.remedy)


class SetupError(MeanderError):
    """An error that reports a fault outside the flow (topic, broker, Java, slots): exit code 2."""

    exit_code = 2
