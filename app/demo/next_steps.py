"""What to try after the demo: commands that work as they are printed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from rich.console import Console

from meander.app.flows import flights
from meander.connectors.local_broker.kafka_jars import kafka_jars


def show(console: Console, bootstrap: str, prefix: str, *, local: bool) -> None:
    """Print them; `local` says that the broker is the one that the demo has started."""
    meander = _near(Path(shutil.which("meander") or Path(sys.executable).with_name("meander")))
    flow = f"--prefix {prefix} --bootstrap {bootstrap}"
    jars = f"java -cp '{kafka_jars()}/*' org.apache.kafka.tools"
    last = flights.topics(prefix)[-1]
    moves = '{"meander":"command","type":"migrate","id":"mine","bins":[0,1,2,3],"worker":0}'
    steps = {
        "Run the flow again: it reads the year from the start, adds its results to the demo's\n"
        "(what came late there, and was bumped, may come in time now), and waits for more": (
            f"MEANDER_FLIGHTS_PREFIX={prefix} {meander} run {_near(Path(flights.__file__))} {flow}"
        ),
        "Meanwhile, in a second terminal, move bins": (
            f"{meander} migrate flights --bins 0-63 --worker 1 {flow}"
        ),
        "Or produce a command to the control topic, with Kafka's own tool": (
            f"echo '{moves}' | {jars}.ConsoleProducer "
            f"--bootstrap-server {bootstrap} --topic {prefix}flights.control"
        ),
        "See what becomes of it": f"{meander} status flights {flow}",
        "Consume results, with their logical time and worker": (
            f"{jars}.consumer.ConsoleConsumer --bootstrap-server {bootstrap} "
            f"--topic {last} --from-beginning --max-messages 10 "
            "--formatter-property print.headers=true"
        ),
    }
    console.print("\n[bold]What to try next[/]")
    for what, command in steps.items():
        console.print(f"\n{what}:")
        # Whole lines, whatever the terminal's width: they are to be copied.
        console.print(f"  {command}", soft_wrap=True, markup=False, style="cyan")
    if local:
        console.print(f"\nThe broker stays up with the demo's topics ({prefix}*). Stop it with:")
        console.print(f"  {meander} broker stop", markup=False, style="cyan")


def _near(path: Path) -> str:
    """As it is reached from here, where that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)
