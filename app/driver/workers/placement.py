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
from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests
from pyspark.serializers import CPickleSerializer

from meander.dataflow.control.resources import ANYWHERE, Resources
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
    """The number of slots that its tasks take now."""

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
    per_slot = _cpus_per_slot(spark)
    for at in range(listed.size()):
        one = listed.apply(at)
        name, host, slots = one.id(), one.hostPort().rpartition(":")[0], one.maxTasks()
        # The driver of a cluster has no slots, and an executor that registers no host yet. One of
        # another resource profile runs no job of the default profile.
        if slots and host and one.resourceProfileId() == DEFAULT_PROFILE:
            taken = running.apply(name) if running.contains(name) else 0
            if not is_local(spark):
                # A task may take several slots. The text, as py4j reads no decimals of Scala.
                cpus = context.schedulerBackend().getExecutorAvailableCpus(name)
                free = int(float(cpus.toList().mkString() or 0) / per_slot)
                if not free and not taken:
                    # It has registered, and gets its slots once it is up.
                    continue
                taken = slots - free
            yield Executor(name, host, slots, taken)


def is_local(spark: SparkContext) -> bool:
    """Return whether all tasks run in the driver's own JVM."""
    return str(spark.master).startswith("local")


def _cpus_per_slot(spark: SparkContext) -> int:
    return int(spark.getConf().get("spark.task.cpus", "1") or 1)


def expect_free_slots(
    placements: Mapping[str, Resources],
    executors: Sequence[Executor],
    occupants: Mapping[str, Resources],
) -> None:
    """Raise SetupError unless all workers of some placements find their slots, each its own.

    Workers have names; `occupants` are those that run, which the error names.

    >>> one = Executor("0", "spark-a", slots=1, running=1)
    >>> where = {"worker 0": one.place}
    >>> expect_free_slots({"worker 2": Resources(host="spark-a")}, [one], where)
    Traceback (most recent call last):
    meander.schemas.errors.SetupError: worker 2: no free slot on host spark-a: 1 of 1 slots runs ...
    """
    taken = dict(occupants)
    free = {one.id: one.free for one in executors}
    for name, placement in sorted(placements.items(), key=_choices):
        place, cores = placement.place, placement.cores
        there = [one for one in executors if placement.admits(one.place)]
        if not there:
            raise SetupError(
                name, f"Spark has no {place}", f"name another one; {_known(executors, free)}"
            )
        if cores > (most := max(one.slots for one in there)):
            raise SetupError(
                name,
                f"its {cores} cores are more than the {most} slots of {place}",
                f"name fewer, or run executors with more cores; {_known(executors, free)}",
            )
        chosen = next((one for one in there if free[one.id] >= cores), None)
        if chosen is None:
            wanted, free_them = "free slot", "free one"
            if cores > 1:
                wanted, free_them = f"{cores} free slots together", "free them"
            raise SetupError(
                name,
                f"no {wanted} on {place}: {_in_use(there, free, taken)}",
                f"{free_them}, or name another host; {_known(executors, free)}",
            )
        free[chosen.id] -= cores
        taken[name] = placement.at(chosen.place)


def _choices(item: tuple[str, Resources]) -> tuple[bool, int]:
    """Return an order in which placements with less choice come first: an executor, many cores."""
    _, placement = item
    return not placement.executor, -placement.cores


def _in_use(
    executors: Sequence[Executor], free: Mapping[str, int], taken: Mapping[str, Resources]
) -> str:
    """Return which workers hold the slots of executors that lack room."""
    slots = sum(one.slots for one in executors)
    busy = slots - sum(free[one.id] for one in executors)
    here = {
        name: its for name, its in taken.items() if its.executor in {one.id for one in executors}
    }
    names = [name if its.cores == 1 else f"{name} ({its.cores})" for name, its in here.items()]
    others = busy - sum(its.cores for its in here.values())
    if others > 0:
        names.append("another task" if others == 1 else f"{others} other tasks")
    listed = " and ".join([*filter(None, [", ".join(names[:-1])]), names[-1]])
    return f"{busy} of {slots} slots {'runs' if slots == 1 else 'run'} {listed}"


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
    if placement.place == ANYWHERE:
        return with_cores(spark, spark.range(1, numSlices=1), placement.cores)
    locations = [placement.host]
    if placement.executor:
        locations = [
            f"executor_{one.host}_{one.id}" for one in executors if placement.admits(one.place)
        ]
    jvm = spark._jvm
    assert jvm is not None
    to_seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
    row = jvm.scala.Tuple2(pickle.dumps(0), to_seq(locations))
    any_class = jvm.scala.reflect.ClassTag.Any()
    rows = spark._jsc.sc().makeRDD(to_seq([row]), any_class)
    placed: RDD[int] = RDD(rows.toJavaRDD(), spark, CPickleSerializer())
    return with_cores(spark, placed, placement.cores)


def with_cores(spark: SparkContext, row: RDD[int], cores: int) -> RDD[int]:
    """Return a row whose task takes several slots of its executor.

    A local master refuses profiles of tasks, so the coordinator counts its slots (`Plans`).
    """
    if cores == 1 or is_local(spark):
        return row
    wanted = TaskResourceRequests().cpus(cores * _cpus_per_slot(spark))
    return row.withResources(ResourceProfileBuilder().require(wanted).build)
