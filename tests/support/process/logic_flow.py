"""A flow whose logic changes as a process, the numbers that it reads, and the check of its totals.

The flow also writes the numbers that it has read. Their logical times tell which version applies to
each of them.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meander.app.recovery.restart import read_decisions
from meander.connectors.topics.internal_topics import topic_names
from meander.dataflow.control.decisions import JointDecision, StartDecision
from tests.support.kafka.brokers import Broker
from tests.support.kafka.topics import Record, consume_all, create_topic, produce, time_of, until
from tests.support.process.feeding import feeding
from tests.support.process.flow_process import FlowProcess, meander, run_command

HEARTBEAT_TIMEOUT = 2
PARTITIONS, KEYS = 3, 6
START = 1_700_000_000_000
MODULE = """
from meander import ChangeableLogic, Checkpointing, Flow, KafkaSink, KafkaSource


class Above(ChangeableLogic, frozen=True):
    limit: int = 0

    def __call__(self, n):
        return n // 10 >= self.limit


class Total(ChangeableLogic, frozen=True):
    factor: int = 1

    def init(self):
        return 0

    def step(self, state, n):
        state += n * self.factor
        return state, {{"key": n % {keys}, "total": state}}


flow = Flow("logic", delivery="exactly_once", checkpoints=Checkpointing(interval=0.5))
numbers = flow.source(KafkaSource("{prefix}numbers"))
numbers.key_by(lambda n: n % {keys}).sink(KafkaSink("{prefix}numbers-read"))
above = numbers.filter(Above(), name="above").key_by(lambda n: n % {keys})
above.fold("total", Total()).sink(KafkaSink("{prefix}totals"))
"""
LATER = """
from meander import ChangeableLogic


class Counted(ChangeableLogic, frozen=True):
    def init(self):
        return {{"total": 0, "count": 0}}

    def step(self, state, n):
        state = {{"total": state["total"] + n, "count": state["count"] + 1}}
        return state, {{"key": n % {keys}, **state}}

    def upgrade(self, state, before):
        return {{"total": state * 1000, "count": before.factor}}
"""
"""A version that a module beside the flow defines."""


@dataclass(frozen=True, order=True)
class Change:
    """A change that the flow has reported."""

    at: int
    operator: str
    version: str


class LogicFlow:
    """A flow over numbers whose logic changes."""

    def __init__(self, broker: Broker, prefix: str, folder: Path) -> None:
        self._bootstrap, self._prefix, self._folder = broker.bootstrap, prefix, folder
        self._fed, self._ids = 0, 0
        self.module = folder / "flow.py"
        self.module.write_text(MODULE.format(prefix=prefix, keys=KEYS))
        for topic in ("numbers", "numbers-read", "totals"):
            create_topic(self._bootstrap, prefix + topic, PARTITIONS)

    def add_later(self) -> None:
        """Add the module of the later version, also while the flow runs."""
        (self._folder / "later.py").write_text(LATER.format(keys=KEYS))

    def run(self, *options: str) -> list[str]:
        """Return the words that run the flow."""
        return run_command(self.module, self._prefix, HEARTBEAT_TIMEOUT, *options)

    def feed(self, count: int = 300) -> None:
        """Feed numbers a millisecond apart. All of a key are in one partition."""
        some = range(self._fed, self._fed + count)
        produce(
            self._bootstrap,
            f"{self._prefix}numbers",
            [
                Record(
                    str(n % 100).encode(),
                    partition=n % 100 % KEYS % PARTITIONS,
                    timestamp=START + n,
                )
                for n in some
            ],
        )
        self._fed += count

    def change(self, *words: str) -> FlowProcess:
        """Change logic, and follow the command to its end."""
        self._ids += 1
        words = ("change", "logic", *words, "--prefix", self._prefix, "--id", f"c{self._ids}")
        with meander(self._folder, self._bootstrap, *words) as command:
            command.exit_code()
        return command

    def write(self, plan: str) -> str:
        """Write a plan's file; return its name."""
        file = self._folder / "plan.yaml"
        file.write_text(plan)
        return str(file)

    def plan(self, text: str, *words: str) -> FlowProcess:
        """Apply a plan, and follow the command to its end."""
        self._ids += 1
        words = ("plan", "apply", "logic", self.write(text), *words)
        words = (*words, "--prefix", self._prefix, "--id", f"p{self._ids}")
        with meander(self._folder, self._bootstrap, *words) as command:
            command.exit_code()
        return command

    def send_plan(self, id: str, *, dry_run: bool = False, **sections: object) -> None:
        """Put the command for a plan on the control topic."""
        command = {
            "meander": "command", "type": "apply_plan", "id": id, "plan": sections,
            "dry_run": dry_run,
        }  # fmt: skip
        topic = topic_names(self._prefix, "logic").control
        produce(self._bootstrap, topic, [Record(json.dumps(command).encode())])

    def load(self) -> AbstractContextManager[None]:
        """Feed numbers without a pause while the block lasts."""
        return feeding(lambda: self.feed(20))

    @property
    def plan_in_force(self) -> dict[str, Any]:
        """The plan in force, as the flow shows it."""
        (plan,) = self.asked("show", "--json").events
        return plan

    def asked(self, *words: str) -> FlowProcess:
        """Run another command to its end."""
        words = ("plan", words[0], "logic", *words[1:], "--prefix", self._prefix)
        with meander(self._folder, self._bootstrap, *words) as command:
            assert command.exit_code() == 0, command.said
        return command

    def check_starts(self) -> None:
        """Raise AssertionError unless each execution starts with the workers and owners of the last
        plan that was decided before it, where no other command changes them."""
        in_force: JointDecision | None = None
        names = topic_names(self._prefix, "logic")
        settings = {"bootstrap.servers": self._bootstrap}
        for _, decision in read_decisions(settings, names.decisions):
            if isinstance(decision, JointDecision):
                in_force = decision
            if isinstance(decision, StartDecision) and in_force is not None:
                ranks = {old: new for new, old in enumerate(in_force.plan.members)}
                assert decision.workers == len(ranks)
                assert decision.owners == tuple(ranks[one] for one in in_force.plan.owners)

    @property
    def changes(self) -> list[Change]:
        """Return the changes that the flow has reported on its status topic."""
        told = consume_all(self._bootstrap, topic_names(self._prefix, "logic").status)
        events = [json.loads(one.value or b"") for one in told]
        return sorted(
            {
                Change(event["at"], operator, version)
                for event in events
                if event["type"] in ("logic_changed", "plan_in_force")
                for operator, version in event["versions"].items()
            }
        )

    def command(self, *words: str) -> None:
        """Give another command, and follow it to its end."""
        words = (words[0], "logic", *words[1:], "--prefix", self._prefix)
        with meander(self._folder, self._bootstrap, *words) as command:
            assert command.exit_code() == 0, command.said

    def until_answered(self, flow: FlowProcess) -> None:
        """Wait until the totals are those of all numbers."""

        def answered() -> bool:
            assert flow.process.poll() is None, flow.said
            return len(self._read("numbers-read")) == self._fed and self._found() == self._wanted()

        until(answered, f"all numbers are in the totals: {flow.said}")

    def check(self) -> Counter[str]:
        """Raise AssertionError unless each number has met the versions of its time, once. Return
        how many results each version has given."""
        assert len(self._read("numbers-read")) == self._fed
        assert self._found() == self._wanted()
        changes = self.changes
        return Counter(_version(changes, "total", time_of(one)) for one in self._read("totals"))

    def _found(self) -> Counter[str]:
        return Counter(
            json.dumps(json.loads(one.value or b""), sort_keys=True) for one in self._read("totals")
        )

    def _wanted(self) -> Counter[str]:
        """Return the results that a single thread gives."""
        states, wanted, upgraded = dict[int, int](), Counter[str](), dict[int, int]()
        changes = self.changes
        # A key has one partition of the topic, in which its numbers stand in their order.
        for one in self._read("numbers-read"):
            time, n = time_of(one), int(one.value or b"")
            if n // 10 < _parameter(_version(changes, "above", time), "limit", 0):
                continue
            key, version = n % KEYS, _version(changes, "total", time)
            if version.startswith("later:Counted"):
                if key not in upgraded:
                    factor = _parameter(_before(changes, version), "factor", 1)
                    states[key] = states.get(key, 0) * 1000
                    upgraded[key] = factor if states.get(key) else 0
                states[key] += n
                upgraded[key] += 1
                result = {"key": key, "total": states[key], "count": upgraded[key]}
            else:
                states[key] = states.get(key, 0) + n * _parameter(version, "factor", 1)
                result = {"key": key, "total": states[key]}
            wanted[json.dumps(result, sort_keys=True)] += 1
        return wanted

    def _read(self, topic: str) -> list[Record]:
        return consume_all(self._bootstrap, self._prefix + topic)


def _before(changes: Sequence[Change], version: str) -> str:
    own = [one.version for one in changes if one.operator == "total"]
    at = own.index(version)
    return own[at - 1] if at else "Total()"


def _version(changes: Sequence[Change], operator: str, time: int) -> str:
    own = [(one.at, one.version) for one in changes if one.operator == operator]
    at = bisect_right([one[0] for one in own], time)
    return own[at - 1][1] if at else ""


def _parameter(version: str, name: str, default: int) -> int:
    """Return a parameter of a version in words.

    >>> _parameter("Above(limit=3)", "limit", 0), _parameter("", "limit", 0)
    (3, 0)
    """
    _, _, behind = version.partition(f"{name}=")
    digits = behind.partition(")")[0].partition(",")[0]
    return int(digits) if digits else default
