"""The nodes of a flow before it runs: one frozen record per operator, in order of definition.

A node reads from an `Output`, one of the outputs of an earlier node. An `EnterNode` leads into a
nested scope, and an `ExitNode` out. A loop is a nested scope that a `LoopNode` enters, and in which
a `FeedbackNode` leads back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from meander.dataflow.control.colocation import DEFAULT_GROUP
from meander.dataflow.graph.graph import ROOT, Scope
from meander.dataflow.interfaces import SinkSpec, SourceSpec
from meander.dataflow.joins.interval import IntervalJoin
from meander.dataflow.logic.changeable import ChangeableLogic
from meander.dataflow.operators.async_map import CoroutineFunction, ResultOrder
from meander.dataflow.operators.collection.row_type import INTEGERS, RowType
from meander.dataflow.operators.custom import BuildOperator
from meander.dataflow.operators.keyed.column_fold import ColumnFold
from meander.dataflow.operators.keyed.context import OnTimer, OnValue
from meander.dataflow.operators.keyed.expiry import Expiry
from meander.dataflow.operators.keyed.operator import Order
from meander.dataflow.operators.retries import OnError
from meander.dataflow.operators.stateless import KeyBy, Step
from meander.dataflow.windows.columnar import ColumnarWindows
from meander.state.encoding.codec import PLAIN, PlainCodec, StateCodec
from meander.state.encoding.columns import ColumnLayout
from meander.state.encoding.expiring import codec_name

if TYPE_CHECKING:
    # These load numba, which takes half a second that other flows do without.
    from meander.dataflow.collections.join import Function as JoinFunction
    from meander.dataflow.collections.reduce import Function as ReduceFunction
    from meander.dataflow.operators.collection.stateless import ReadRow

Guarantee = Literal["at_least_once", "exactly_once"]
"""The delivery of results across failures of workers."""


MapKind = Literal["map", "filter", "flat_map", "negate", "concat"]
"""What a node without state does with updates of collections."""
FUNCTION_KINDS = "map", "filter", "flat_map"
"""The kinds that have a function of the user."""


@dataclass(frozen=True, slots=True)
class Output:
    """An output of a node, with its number."""

    node: Node
    number: int
    scope: Scope

    @staticmethod
    def of(node: Node, number: int = 0) -> Output:
        """Return an output of a defined node."""
        return Output(node, number, scope_of(node))


@dataclass(frozen=True, slots=True)
class SourceNode:
    """A node that reads records from outside."""

    name: str
    spec: SourceSpec


@dataclass(frozen=True, slots=True)
class MergeNode:
    """A node that passes the records of several streams on as one stream."""

    name: str
    upstreams: tuple[Output, ...]


@dataclass(frozen=True, slots=True)
class StepsNode:
    """A node that applies a chain of stateless steps."""

    name: str
    upstream: Output
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class SplitNode:
    """A node that sends each record to the output that a function names."""

    name: str
    upstream: Output
    choose: Callable[[Any], object]
    outputs: tuple[str, ...]
    on_error: OnError


@dataclass(frozen=True, slots=True)
class AsyncMapNode:
    """A node that maps each record by a coroutine. It is nondeterministic."""

    name: str
    upstream: Output
    function: CoroutineFunction
    concurrency: int
    timeout: float
    order: ResultOrder
    on_error: OnError


@dataclass(frozen=True, slots=True)
class ExchangeNode:
    """A node that sends each record to the owner of its bin."""

    name: str
    upstream: Output
    on_error: OnError
    group: str = DEFAULT_GROUP
    """The colocation group whose bins decide the owner."""
    keyless: bool = False
    """Whether its records have no keys. They then go to the owner of their partition's bin."""
    collection: bool = False
    """Whether it sends updates of a collection, to the owner of their key's bin."""


@dataclass(frozen=True, slots=True)
class FoldLogic:
    """A fold that users write as `init` and `(state, value) -> (state, result)`."""

    init: Callable[[], object]
    step: Callable[[Any, Any], tuple[object, object]]
    changeable: ChangeableLogic | None = None
    """The logic that has these functions, where a plan can replace it."""


@dataclass(frozen=True, slots=True)
class ProcessLogic:
    """A process function that users write as `init` and one `(context, state, value) -> state` per
    input, with optional functions for timers, notifications and alarms. `side` names the side
    outputs, and `uses` the extra columns that the functions read. Windows have one that calls the
    user's functions."""

    init: Callable[[], object]
    on_values: tuple[OnValue, ...]
    on_timer: OnTimer | None
    on_notify: OnTimer | None
    on_alarm: OnTimer | None
    side: tuple[str, ...]
    changeable: ChangeableLogic | None = None
    """The logic that has these functions, where a plan can replace it."""
    uses: tuple[str, ...] = ()
    inner: tuple[tuple[str, object], ...] = ()
    """The user's functions that these call, each with its role."""
    counted: tuple[tuple[str, str], ...] = ()
    """Side outputs whose results a counter of the worker counts: output and counter."""
    on_failed_timer: OnTimer | None = None
    """A function that changes the state of a key whose timer function has failed."""


@dataclass(frozen=True, slots=True)
class TableJoinLogic:
    """A join of a stream with a table, as of the time of each record. The first input has the
    changes of the table, the second one the records: `(value, row) -> result`."""

    step: Callable[[Any, Any], object]
    keeps_unmatched: bool
    """Whether a record without a row gives a result."""
    on: Callable[[Any], object] | None = None
    """Returns the table's key of a record, where each bin has a copy of the table."""


Logic = FoldLogic | ProcessLogic | ColumnFold | ColumnarWindows | TableJoinLogic | IntervalJoin


@dataclass(frozen=True, slots=True)
class KeyedNode:
    """A node that applies a stateful operator. Its name is the name of its state."""

    name: str
    upstreams: tuple[Output, ...]
    logic: Logic
    order: Order
    codec: StateCodec
    on_error: OnError
    colocate: bool
    """Whether its bins move with those of the default group, or alone."""
    expiry: Expiry | None = None
    """The time to live of its keys; None where they live for ever."""

    @property
    def group(self) -> str:
        """Return the colocation group of the operator."""
        return DEFAULT_GROUP if self.colocate else self.name

    @property
    def inputs_first(self) -> bool:
        """Return whether it applies the records of one time by input first."""
        return isinstance(self.logic, TableJoinLogic)

    @property
    def codec_name(self) -> str:
        """Return the name of the codec in layers."""
        return self.codec.name if self.expiry is None else codec_name(self.codec.name)

    @property
    def layout(self) -> ColumnLayout | None:
        """Return the columns of its states where these hold numbers alone, or None."""
        match self.logic:
            case ColumnFold() as fold if isinstance(self.codec, PlainCodec):
                layout = fold.layout
            case ColumnarWindows() as windows:
                layout = windows.layout
            case _:
                return None
        return layout if layout.numbers else None


@dataclass(frozen=True, slots=True)
class LoopNode:
    """A node that receives the records of a loop: new ones, and those of the feedback edge."""

    name: str
    upstream: Output


@dataclass(frozen=True, slots=True)
class FeedbackNode:
    """A node that returns records for another iteration, up to `max_iterations`."""

    name: str
    upstream: Output
    loop: LoopNode
    max_iterations: int
    on_error: OnError
    collection: bool = False
    """Whether the loop iterates a collection."""


@dataclass(frozen=True, slots=True)
class EnterNode:
    """A node that lets records enter a nested scope, which has its name."""

    name: str
    upstream: Output


@dataclass(frozen=True, slots=True)
class ExitNode:
    """A node that lets records leave a nested scope."""

    name: str
    upstream: Output


@dataclass(frozen=True, slots=True)
class OperatorNode:
    """A node that applies an operator of the user, with one input and one output."""

    name: str
    upstream: Output
    build: BuildOperator
    on_error: OnError = "fail"
    sorts: bool = False
    """Whether it holds records until their time is closed, and sends them in the total order."""
    arrangements: tuple[Output, ...] = ()
    """The arrangements that it reads by key."""


@dataclass(frozen=True, slots=True)
class IngestNode:
    """A node that reads updates of a collection from the records of a stream."""

    name: str
    upstream: Output
    read: ReadRow
    on_error: OnError
    row_type: RowType = INTEGERS


@dataclass(frozen=True, slots=True)
class MapUpdatesNode:
    """A node that turns the updates of one or more collections into others, without state."""

    name: str
    upstreams: tuple[Output, ...]
    kind: MapKind
    function: Callable[..., object] | None = None
    """The user's function over columns, for kinds that have one."""
    row_type: RowType = INTEGERS


@dataclass(frozen=True, slots=True)
class ArrangeNode:
    """A node that keeps the updates of a collection by key, for joins and reductions behind it."""

    name: str
    upstream: Output
    codec: StateCodec = PLAIN
    colocate: bool = True


@dataclass(frozen=True, slots=True)
class JoinNode:
    """A node that joins two collections by key."""

    name: str
    upstreams: tuple[Output, Output]
    function: JoinFunction
    row_type: RowType = INTEGERS
    codec: StateCodec = PLAIN
    colocate: bool = True


@dataclass(frozen=True, slots=True)
class CountNode:
    """A node outside of loops that counts the values of each key of a collection."""

    name: str
    upstream: Output
    row_type: RowType = INTEGERS
    codec: StateCodec = PLAIN
    colocate: bool = True


@dataclass(frozen=True, slots=True)
class ReduceNode:
    """A node that reduces the values of each key of a collection."""

    name: str
    upstream: Output
    function: ReduceFunction
    row_type: RowType = INTEGERS
    codec: StateCodec = PLAIN
    colocate: bool = True


@dataclass(frozen=True, slots=True)
class ConsolidateNode:
    """A node that gives each row of a collection once per time."""

    name: str
    upstream: Output


@dataclass(frozen=True, slots=True)
class ChangesNode:
    """A node that makes the updates of a collection the records of a stream."""

    name: str
    upstream: Output
    fields: tuple[str, ...] = ("key", "value")
    """The names of the last columns before the diff."""


StatefulCollectionNode = ArrangeNode | CountNode | JoinNode | ReduceNode
"""A node that keeps arrangements."""
CollectionNode = IngestNode | MapUpdatesNode | StatefulCollectionNode | ConsolidateNode
StatefulNode = KeyedNode | StatefulCollectionNode
"""A node that keeps state in bins."""


@dataclass(frozen=True, slots=True)
class SinkNode:
    """A node that writes results outside the flow."""

    name: str
    upstream: Output
    spec: SinkSpec
    on_error: OnError


@dataclass(frozen=True, slots=True)
class ProbeNode:
    """A node that shows the frontier at its place."""

    name: str
    upstream: Output


Node = (
    SourceNode
    | MergeNode
    | StepsNode
    | SplitNode
    | AsyncMapNode
    | ExchangeNode
    | KeyedNode
    | LoopNode
    | FeedbackNode
    | EnterNode
    | ExitNode
    | OperatorNode
    | SinkNode
    | ProbeNode
    | CollectionNode
    | ChangesNode
)


def scope_of(node: Node) -> Scope:
    """Return the scope in which a node's records leave. It is the deepest scope of its
    upstreams."""
    match node:
        case SourceNode():
            return ROOT
        case LoopNode() | EnterNode():
            return Scope(node.name, node.upstream.scope)
        case ExitNode():
            assert node.upstream.scope.parent is not None
            return node.upstream.scope.parent
        case _:
            return max((o.scope for o in upstreams(node)), key=lambda scope: scope.depth)


def group_of(node: Node) -> str:
    """Return the colocation group whose owners hold a node's keyed records. Before the first
    exchange any worker may hold them."""
    while not isinstance(node, ExchangeNode | KeyedNode):
        before = upstreams(node)
        if not before:
            return DEFAULT_GROUP
        node = before[0].node
    return node.group


def has_keys(output: Output) -> bool:
    """Return whether the records of an output have keys: all have keys, or none."""
    match output.node:
        case node if isinstance(node, SourceNode | ChangesNode | CollectionNode):
            return False
        case KeyedNode():
            return True
        case ExchangeNode(keyless=keyless, collection=collection):
            return not (keyless or collection)
        case StepsNode(steps=steps) if any(isinstance(step, KeyBy) for step in steps):
            return True
        case FeedbackNode(loop=loop):
            # Records of the feedback edge join the stream of the loop.
            return has_keys(loop.upstream)
        case node:
            # Either all streams of a merge have keys, or none has.
            upstream, *_ = upstreams(node)
            return has_keys(upstream)


def row_type_of(node: Node) -> RowType:
    """Return the types of the rows of a collection that a node gives."""
    match node:
        case IngestNode() | MapUpdatesNode() | CountNode() | JoinNode() | ReduceNode():
            return node.row_type
        case node:
            return row_type_of(upstreams(node)[0].node)


def uses(node: Node) -> tuple[str, ...]:
    """Return the extra columns that the functions of a node read."""
    match node:
        case KeyedNode(
            logic=ProcessLogic() | ColumnFold() | ColumnarWindows() | IntervalJoin() as logic
        ):
            return logic.uses
        case _:
            return ()


def outputs(node: Node) -> int:
    """Return the number of outputs of a node."""
    return len(node.outputs) if isinstance(node, SplitNode) else 1 + len(side_outputs(node))


def side_outputs(node: Node) -> tuple[str, ...]:
    """Return the names of the side outputs of a node."""
    match node:
        case KeyedNode(logic=ProcessLogic() | ColumnarWindows() | IntervalJoin() as logic):
            return logic.side
        case _:
            return ()


def has_alarms(node: Node) -> bool:
    """Return whether the wall clock may call a function of a node."""
    match node:
        case KeyedNode(logic=ProcessLogic(on_alarm=on_alarm)):
            return on_alarm is not None
    return False


def upstreams(node: Node) -> tuple[Output, ...]:
    """Return the outputs that a node reads from."""
    match node:
        case SourceNode():
            return ()
        case KeyedNode() | MapUpdatesNode() | JoinNode() | MergeNode():
            return node.upstreams
        case _:
            return (node.upstream,)
