"""An execution plan as a document that a person can write, in YAML or JSON.

Each section may be left out; what it describes stays as it is. Bins and partitions stand as ranges
such as `0-127, 200`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

MAX_NAME = 200
"""The most characters of a name: a class, an operator, a host."""

MAX_CORES = 1024
"""The most cores of a worker."""

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Size = Annotated[str, Field(pattern=r"^[1-9]\d{0,14}[bkmgtBKMGT]?$")]
"""A number of bytes, or of KiB, MiB, GiB or TiB."""
WorkerNumber = Annotated[str, Field(pattern=r"^(0|[1-9]\d{0,4})$")]
"""The number of a worker. JSON has texts as keys."""
Ranges = Annotated[str, Field(pattern=r"^[0-9, -]*$", description="Numbers such as 0-127, 200.")]
Shares = dict[WorkerNumber, Ranges]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class NewLogic(_Part):
    """Another version of the logic of one operator."""

    logic: Annotated[
        Name | None,
        Field(
            description="A class of the flow's module, or module:Class of a module beside it; null:"
            " the class that the operator has."
        ),
    ] = None
    parameters: Annotated[
        dict[str, JsonValue],
        Field(
            description="Values for fields of the class. The others keep their values where the"
            " class stays, and else have their defaults."
        ),
    ] = Field(default_factory=dict)


class WorkerResources(_Part):
    """Where a worker runs, and with what; without fields anywhere, with the flow's settings."""

    host: Annotated[Name | None, Field(description="The host of its Spark executor.")] = None
    executor: Annotated[Name | None, Field(description="Spark's id of its executor.")] = None
    cores: Annotated[
        int | None,
        Field(
            ge=1, le=MAX_CORES, description="The slots of its executor that it takes; default 1."
        ),
    ] = None
    memory: Annotated[
        Size | None,
        Field(
            description="The bound of its states and of the records on their way, such as 512m or"
            " 2g. Default: the settings of the flow."
        ),
    ] = None


class PlanDocument(_Part):
    """An execution plan, or a part of one.

    >>> PlanDocument(workers={"0": WorkerResources()}, bins={"0": "0-255"}).sections
    {'workers': {'0': {}}, 'bins': {'0': '0-255'}}
    """

    workers: Annotated[
        dict[WorkerNumber, WorkerResources] | None,
        Field(
            description="All workers, and their resources. Without bins or partitions, new workers"
            " get their share, and those left out give theirs away."
        ),
    ] = None
    operators: Annotated[
        dict[Name, NewLogic] | None, Field(description="The new logic of operators, by name.")
    ] = None
    bins: Annotated[
        Shares | None,
        Field(description="The bins of each worker, of all operators that move together."),
    ] = None
    bins_of: Annotated[
        dict[Name, Shares] | None,
        Field(description="The bins of each worker, by the operator that moves alone."),
    ] = None
    partitions: Annotated[
        dict[Name, Shares] | None,
        Field(description="The partitions that each worker reads, by source."),
    ] = None

    @property
    def sections(self) -> dict[str, object]:
        """Return the sections that the document has, as JSON values."""
        return self.model_dump(exclude_none=True)
