"""The README's examples, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def example(file: str) -> dict[str, object]:
    """What the Python example that names itself `# file` defines."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (source,) = [block for block in blocks if block.startswith(f"# {file}\n")]
    defined: dict[str, object] = {}
    exec(compile(source, file, "exec"), defined)
    return defined
