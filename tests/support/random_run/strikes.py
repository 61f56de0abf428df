"""What happens to a flow in a random run, each drawn without a look at the flow: a seed gives the
same strikes in the same order, whatever becomes of them.

`SHARES` says how often each kind is drawn. A new kind is a dataclass with `drawn` and `strike`,
and a line there.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import count
from typing import ClassVar, Protocol, Self, get_args

from meander.dataflow.api.checkpointing import POLICIES
from meander.dataflow.control.command import Strategy
from tests.support.random_run.drivers import HEARTBEAT_TIMEOUT
from tests.support.random_run.nonsense import NONSENSE
from tests.support.random_run.world import World

ONE_BY_ONE = 8
"""A fluid migration has at most this many bins: on a busy machine each takes seconds."""
RECENT = 6
"""An abort is for one of this many strikes before it."""


class Strike(Protocol):
    """Something that happens to a running flow."""

    name: ClassVar[str]

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        """One at random; `number` tells it from all others of the run."""
        ...

    def strike(self, world: World) -> str:
        """Do it; what came of it, in words, for the log."""
        ...


@dataclass(frozen=True, slots=True)
class Migrate:
    """Some bins go to a worker, which may not be there yet."""

    name: ClassVar[str] = "migrations"
    id: str
    worker: int
    share: float
    """Of the bins."""
    chosen: int
    """The seed by which they are chosen."""
    strategy: Strategy
    precopy: bool
    order: str
    overlap: str
    later: int | None
    """Milliseconds from now on; None: at once."""

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        return cls(
            id=f"s{number}",
            worker=rng.randint(0, 5),
            share=rng.choice([0.02, 0.2, 0.5, 1.0]),
            chosen=number,
            strategy=rng.choice(get_args(Strategy)),
            precopy=rng.random() < 0.5,
            order=rng.choice(["as-listed", "hottest", "coldest"]),
            overlap=rng.choice(["queue", "queue", "reject"]),
            later=rng.choice([None, None, None, -5_000, 0, 300, 1_000, 3_000]),
        )

    def strike(self, world: World) -> str:
        some = max(1, int(self.share * world.bins))
        if self.strategy == "fluid":
            some = min(some, ONE_BY_ONE)
        bins = random.Random(self.chosen).sample(range(world.bins), some)
        time = None if self.later is None else world.now_ms() + self.later
        return world.command(
            {
                "type": "migrate", "id": self.id, "worker": self.worker, "bins": bins,
                "strategy": self.strategy, "precopy": self.precopy, "order": self.order,
                "overlap": self.overlap, "time": time,
            }
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Abort:
    """A command ends, if it has not ended."""

    name: ClassVar[str] = "aborts"
    id: str
    command: str

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        return cls(f"s{number}", f"s{max(0, number - rng.randint(1, RECENT))}")

    def strike(self, world: World) -> str:
        return world.command({"type": "abort"} | asdict(self))


@dataclass(frozen=True, slots=True)
class Rescale:
    """Workers join or leave."""

    name: ClassVar[str] = "rescales"
    id: str
    workers: int

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        return cls(f"s{number}", rng.randint(1, 4))

    def strike(self, world: World) -> str:
        return world.command({"type": "rescale"} | asdict(self))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One is taken, some of them under a name."""

    name: ClassVar[str] = "checkpoints and savepoints asked for"
    id: str
    policy: str | None
    savepoint: str | None

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        policy = rng.choice([None, *POLICIES])
        return cls(f"s{number}", policy, rng.choice([None, f"v{number}", "v"]))

    def strike(self, world: World) -> str:
        return world.command({"type": "checkpoint"} | asdict(self))


@dataclass(frozen=True, slots=True)
class Nonsense:
    """The control topic gets what is no command."""

    name: ClassVar[str] = "nonsense commands"
    which: int

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        return cls(rng.randrange(len(NONSENSE)))

    def strike(self, world: World) -> str:
        world.say(NONSENSE[self.which])
        return repr((NONSENSE[self.which] or b"null")[:80])


@dataclass(frozen=True, slots=True)
class Stop:
    """The flow ends as a user ends it, and is run again, from the savepoint or the newest."""

    name: ClassVar[str] = "flows stopped by a command"
    id: str
    savepoint: bool
    back: bool

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        return cls(f"s{number}", rng.random() < 0.7, rng.random() < 0.5)

    def strike(self, world: World) -> str:
        savepoint = f"v{self.id}" if self.savepoint else None
        world.stop(savepoint, back=self.back)
        return world.command({"type": "stop", "id": self.id, "savepoint": savepoint})


@dataclass(frozen=True, slots=True)
class KillWorker:
    """One dies, perhaps its successor too, and perhaps another at the same time."""

    name: ClassVar[str] = "workers killed"
    victim: float
    """Which of those that are there, as a share of them."""
    other: float | None
    again: float | None
    """Seconds until its successor dies, too."""

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        other = rng.random() if rng.random() < 0.2 else None
        again = rng.uniform(0.1, 3) if rng.random() < 0.3 else None
        return cls(rng.random(), other, again)

    def strike(self, world: World) -> str:
        said = world.strike_worker(self.victim, signal.SIGKILL)
        if self.other is not None:
            said += f"; {world.strike_worker(self.other, signal.SIGKILL)}"
        if self.again is not None:
            world.later(self.again, lambda: world.strike_worker(self.victim, signal.SIGKILL))
        return said


@dataclass(frozen=True, slots=True)
class StopWorker:
    """One does nothing for a while."""

    name: ClassVar[str] = "workers stopped and continued"
    victim: float
    seconds: float

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        return cls(rng.random(), _while(rng))

    def strike(self, world: World) -> str:
        return world.stop_worker(self.victim, self.seconds)


@dataclass(frozen=True, slots=True)
class KillDriver:
    """The command dies, and is run again."""

    name: ClassVar[str] = "drivers killed"

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        return cls()

    def strike(self, world: World) -> str:
        return world.kill_driver()


@dataclass(frozen=True, slots=True)
class StopDriver:
    """The command does nothing for a while, in which another may take the flow."""

    name: ClassVar[str] = "drivers stopped and continued"
    seconds: float

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        return cls(_while(rng))

    def strike(self, world: World) -> str:
        return world.stop_driver(self.seconds)


@dataclass(frozen=True, slots=True)
class KillExecutor:
    """The JVM that workers run below dies with them: on a local master it is the driver's."""

    name: ClassVar[str] = "executors killed"
    victim: float

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        return cls(rng.random())

    def strike(self, world: World) -> str:
        return world.kill_executor(self.victim)


@dataclass(frozen=True, slots=True)
class StopExecutor:
    """That JVM does nothing for a while, and its workers go on."""

    name: ClassVar[str] = "executors stopped and continued"
    victim: float
    seconds: float

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        return cls(rng.random(), _while(rng))

    def strike(self, world: World) -> str:
        return world.stop_executor(self.victim, self.seconds)


@dataclass(frozen=True, slots=True)
class BrokerAway:
    """The broker stands still, or dies and is started again on the same data."""

    name: ClassVar[str] = "outages of the broker"
    seconds: float
    dies: bool

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        return cls(_while(rng), rng.random() < 0.4)

    def strike(self, world: World) -> str:
        return world.lose_broker(self.seconds, dies=self.dies)


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """The source topic grows."""

    name: ClassVar[str] = "partitions added"
    more: int

    @classmethod
    def drawn(cls, rng: random.Random, number: int) -> Self:
        return cls(rng.randint(1, 2))

    def strike(self, world: World) -> str:
        return world.add_partitions(self.more)


def _while(rng: random.Random) -> float:
    """Seconds: mostly within a lease, in which others wait, now and then beyond it."""
    return rng.choice([0.1, 0.5, 1.0, 2.0, HEARTBEAT_TIMEOUT + 1, HEARTBEAT_TIMEOUT + 4])


SHARES: dict[type[Strike], int] = {
    Migrate: 32, Abort: 6, Rescale: 12, Checkpoint: 8, Nonsense: 8, Stop: 1, KillWorker: 9,
    StopWorker: 6, KillDriver: 2, StopDriver: 2, KillExecutor: 1, StopExecutor: 1, BrokerAway: 3,
    AddPartitions: 2,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Planned:
    """A strike, and what is waited for before."""

    pause: float
    """Seconds after the one before it."""
    at_once: bool
    """Else it also waits until the flow has started."""
    strike: Strike


def strikes(seed: int) -> Iterator[Planned]:
    """Those of a seed, without an end.

    >>> from itertools import islice
    >>> [*islice(strikes(3), 100)] == [*islice(strikes(3), 100)]
    True
    """
    rng = random.Random(f"strikes {seed}")
    kinds: list[Callable[[random.Random, int], Strike]] = [kind.drawn for kind in SHARES]
    for number in count():
        pause = rng.choice([0.0, 0.1, 0.3]) if rng.random() < 0.4 else rng.uniform(0.3, 2.0)
        (drawn,) = rng.choices(kinds, [*SHARES.values()])
        # A flow's first start reads commands from the end of the topic, so none is sent before it.
        at_once = rng.random() < 0.15 and number > 0
        yield Planned(pause, at_once, drawn(rng, number))
