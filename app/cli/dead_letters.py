"""`meander dead-letters`: list the dead letters of a flow, show them, and produce them again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Annotated, Any

import typer

from meander.app.cli.command_group import CommandGroup
from meander.app.cli.options import Flow, FlowConnection, connected
from meander.app.cli.views.dead_letters import (
    LetterGroups,
    list_groups,
    report_replay,
    show_letters,
)
from meander.app.cli.views.trace import parse_time
from meander.connectors.kafka import client
from meander.connectors.topics.dead_letter_replay import DeadLetterReplay, ReplayCounts, select
from meander.connectors.topics.dead_letters import (
    DeadLetterRecord,
    ReplayMark,
    read_dead_letters,
    read_missing,
)
from meander.connectors.topics.internal_topics import expect_started

EXAMPLE = "Example: meander dead-letters counts"
DEFAULT = "list"
"""The command where the arguments name none."""

Operator = Annotated[
    list[str] | None,
    typer.Option(help="Only dead letters of this operator; can be repeated.", show_default=False),
]
Reason = Annotated[
    str | None,
    typer.Option(help="Only dead letters whose reason contains this text.", show_default=False),
]
Since = Annotated[
    str | None,
    typer.Option(
        help="Only failures from this time on: milliseconds since 1970, or such as"
        " 2026-03-01T12:00:00Z (UTC without a zone).",
        show_default=False,
    ),
]


class DeadLetterGroup(CommandGroup):
    """A group of commands in which a flow without a command is to be listed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (click's context)
        """Add the default command where the arguments name none."""
        if args and args != ["--help"] and not set(args) & self.commands.keys():
            args = [DEFAULT, *args]
        rest: list[str] = super().parse_args(ctx, args)
        return rest


commands = typer.Typer(
    cls=DeadLetterGroup,
    no_args_is_help=True,
    help="List the dead letters of a flow (the command list may be left out), show them, or produce"
    " their records again.",
    epilog=EXAMPLE,
)


@commands.callback()
def dead_letters() -> None:
    """List the dead letters of a flow, show them, or produce their records again."""


@commands.command(DEFAULT, epilog=EXAMPLE)
@connected
def list_(
    flow: Flow, operator: Operator = None, reason: Reason = None, since: Since = None, *,
    to: FlowConnection,
) -> None:  # fmt: skip
    """List dead letters by operator and reason, with the time of the last failure.

    JSON lines also have the time of the first one.

    A dead letter counts as replayed once its record was produced again.
    """
    topic = _topic(flow, to)
    groups = LetterGroups(_chosen(operator, reason))
    with to.output.working("reading dead letters"):
        for one in read_dead_letters(to.kafka(), topic, _since(since)):
            groups.take(one)
    list_groups(to.output, flow, groups)


@commands.command(epilog="Example: meander dead-letters show counts --operator map --limit 1")
@connected
def show(
    flow: Flow,
    offsets: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="[OFFSET]...", help="The offsets of dead letters.", show_default=False
        ),
    ] = None,
    operator: Operator = None,
    reason: Reason = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(min=1, help="The most dead letters, the newest.")] = 10,
    original: Annotated[
        bool,
        typer.Option(
            "--original/--no-original",
            help="Read the records that dead letters do not carry from their topics.",
        ),
    ] = True,
    *,
    to: FlowConnection,
) -> None:
    """Show dead letters as a whole, the newest ones or those of some offsets.

    The original record is that of the dead letter. Where it carries none, its topic may hold it.

    Exit code 0; 1: a dead letter of that offset does not exist.
    """
    settings, topic, wanted = to.kafka(), _topic(flow, to), {*(offsets or ())}
    matches = _chosen(operator, reason)
    with to.output.working("reading dead letters"):
        letters, marked = deque[DeadLetterRecord](maxlen=len(wanted) or limit), set[int]()
        for record in read_dead_letters(settings, topic, _since(since)):
            if isinstance(record, ReplayMark):
                marked.update(record.offsets)
            elif record.offset in wanted if wanted else matches(record):
                letters.append(record)
        originals = read_missing(settings, letters) if original else {}
    show_letters(to.output, letters, marked, originals)
    if absent := sorted(wanted - {one.offset for one in letters}):
        typer.echo(f"no dead letter at offset {', '.join(map(str, absent))}", err=True)
        raise typer.Exit(1)


@commands.command(epilog="Example: meander dead-letters replay counts --operator map --dry-run")
@connected
def replay(
    flow: Flow,
    operator: Operator = None,
    reason: Reason = None,
    since: Since = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also those that were produced again before.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count them, and produce nothing.")
    ] = False,
    *,
    to: FlowConnection,
) -> None:
    """Produce the records of dead letters again, to the topics that they came from.

    Each goes to its partition, with its key, bytes, headers and timestamp. The whole flow
    processes these records once more, so branches and states that had taken them take them twice.
    A dead letter is produced again once, also where this command is interrupted, unless --again
    says otherwise. The flow may run meanwhile.

    Exit code 0: done; 1: some carry no record, and their topics no longer hold it.
    """
    settings, topic, output = to.kafka(), _topic(flow, to), to.output
    chosen, since_ms = _chosen(operator, reason), _since(since)
    if dry_run:
        with output.working("reading dead letters"):
            found = select(settings, topic, chosen, since_ms, again)
        report_replay(output, found, ReplayCounts(len(found.offsets), found.records), dry_run=True)
        return
    producing = DeadLetterReplay(settings, topic)
    with output.working("reading dead letters"):
        found = producing.select(chosen, since_ms, again)
    with output.bar("dead letters") as bar:
        task = bar.add_task("replay", total=len(found.offsets))
        counts = producing.produce(found, lambda count: bar.advance(task, count))
    report_replay(output, found, counts)
    if counts.gone:
        raise typer.Exit(1)


def _topic(flow: str, to: FlowConnection) -> str:
    topic = to.topics_of(flow).dead
    expect_started(client.admin(to.kafka()), topic, flow)
    return topic


def _since(text: str | None) -> int | None:
    return None if text is None else parse_time(text, "--since")


def _chosen(operators: list[str] | None, reason: str | None) -> Callable[[DeadLetterRecord], bool]:
    def chosen(one: DeadLetterRecord) -> bool:
        named = not operators or one.operator in operators
        return named and (reason is None or reason in one.reason)

    return chosen
