"""The executors of a Spark context with their slots, and Spark jobs that run in a named one.

Guarantees that a job with a placement waits for a slot of the executors that it names, as long as
they live. Spark has no such order, only preferred locations of rows and a time after which it gives
them up: `LOCALITY_WAIT` is longer than any run. Where Spark knows no such executor, it runs the job
elsewhere at once, so `expect_free_slots` comes first. Cost: 2 ms to list, 12 ms for such a row.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.serializers import CPickleSerializer

from meander.dataflow.control.resources import Resources
from meander.schemas.errors import MeanderError, SetupError

LOCALITY_WAIT = "3650d"
"""The time for which Spark keeps to the preferred locations of a job."""
DEFAULT_PROFILE = 0
"""The id of the resource profile of jobs that name none."""


@dataclass(frozen=True, slots=True)
class Executor:
    """An executor as Spark reports it."""

    id: str
    host: str
    slots: int
    """The number of tasks that it runs at once."""
    running: int
    """The number of tasks that it runs now."""

    @property
    def free(self) -> int:
        """The number of free slots."""
        return max(0, self.slots - self.running)

    @property
    def place(self) -> Resources:
        """The place of a worker that runs in the executor."""
        return Resources(self.host, self.id)


def executors(spark: SparkContext) -> list[Executor]:
    """Return the executors that can run tasks now, by host and id; a local master has one.

    Raises MeanderError where Spark does not answer.
    """
    try:
        return sorted(_executors(spark), key=lambda one: (one.host, one.id))
    except (Py4JError, OSError) as error:
        raise MeanderError("Spark", f"it does not list its executors ({error})") from error


def _executors(spark: SparkContext) -> Iterator[Executor]:
    context = spark._jsc.sc()
    listed = context.statusStore().executorList(True)
    # The list counts tasks too, but up to a tenth of a second late.
    running = context.taskScheduler().runningTasksByExecutors()
    for at in range(listed.size()):
        one = listed.apply(at)
        name, host, slots = one.id(), one.hostPort().rpartition(":")[0], one.maxTasks()
        # The driver of a cluster has no slots, and an executor that registers no host yet. One of
        # another resource profile runs no job of the default profile.
        if slots and host and one.resourceProfileId() == DEFAULT_PROFILE:
            tasks = running.apply(name) if running.contains(name) else 0
            yield Executor(name, host, slots, tasks)


def expect_free_slots(
    placements: Mapping[str, Resources],
    executors: Sequence[Executor],
    occupants: Mapping[str, Resources],
) -> None:
    """Raise SetupError unless all workers of some placements find a slot, each its own.

    Workers have names; `occupants` are those that run, which the error names.

    >>> one = Executor("0", "spark-a", slots=1, running=1)
    >>> where = {"worker 0": one.place}
    >>> expect_free_slots({"worker 2": Resources(host="spark-a")}, [one], where)
    Traceback (most recent call last):
    meander.schemas.errors.SetupError: worker 2: no free slot on host spark-a: 1 of 1 slots runs ...
    """
    taken = dict(occupants)
    free = {one.id: one.free for one in executors}
    # An executor leaves no choice, so these placements come before those that name only a host.
    for name, placement in sorted(placements.items(), key=lambda item: not item[1].executor):
        there = [one for one in executors if placement.allows(one.place)]
        if not there:
            raise SetupError(
                name, f"Spark has no {placement}", f"name another one; {_known(executors, free)}"
            )
        chosen = next((one for one in there if free[one.id]), None)
        if chosen is None:
            raise SetupError(
                name,
                f"no free slot on {placement}: {_in_use(there, taken)}",
                f"free one, or name another host; {_known(executors, free)}",
            )
        free[chosen.id] -= 1
        taken[name] = chosen.place


def _in_use(executors: Sequence[Executor], taken: Mapping[str, Resources]) -> str:
    """Return which workers hold the slots of executors that are full."""
    slots, here = sum(one.slots for one in executors), {one.id for one in executors}
    names = [name for name, at in taken.items() if at.executor in here]
    others = slots - len(names)
    if others > 0:
        names.append("another task" if others == 1 else f"{others} other tasks")
    listed = " and ".join([*filter(None, [", ".join(names[:-1])]), names[-1]])
    return f"{slots} of {slots} slots {'runs' if slots == 1 else 'run'} {listed}"


def _known(executors: Sequence[Executor], free: Mapping[str, int]) -> str:
    """Return the hosts with their executors and free slots."""
    hosts = dict.fromkeys(one.host for one in executors)
    if not hosts:
        return "no executor has registered with the driver yet"
    there = (
        f"{host} ("
        + ", ".join(
            f"executor {one.id}: {free[one.id]} of {one.slots} slots free"
            for one in executors
            if one.host == host
        )
        + ")"
        for host in hosts
    )
    return f"hosts known: {', '.join(there)}"


def placed_row(
    spark: SparkContext, placement: Resources, executors: Sequence[Executor]
) -> RDD[int]:
    """Return an RDD of one row, whose job runs in an executor that a placement names."""
    locations = [placement.host]
    if placement.executor:
        locations = [
            f"executor_{one.host}_{one.id}" for one in executors if placement.allows(one.place)
        ]
    jvm = spark._jvm
    assert jvm is not None
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    row = jvm.scala.Tuple2(pickle.dumps(0), to_seq(locations))
    any_class = jvm.scala.reflect.ClassTag.Any()
    rows = spark._jsc.sc().makeRDD(to_seq([row]), any_class)
    return RDD(rows.toJavaRDD(), spark, CPickleSerializer())
