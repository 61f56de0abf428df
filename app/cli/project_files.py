"""The files of a new project, as templates: `$name` is its name, `$module` its Python name,
`$requirement` how pip gets Meander."""

from __future__ import annotations

FLOW = '''"""Count the words of the topic `lines`."""

from meander import Flow, KafkaSink, KafkaSource

Count = dict[str, str | int]


def count(state: int, word: str) -> tuple[int, Count]:
    return state + 1, {"word": word, "count": state + 1}


flow = Flow("$name")
words = flow.source(KafkaSource[str]("lines", value="str")).flat_map(str.split)
counts = words.key_by(lambda word: word).fold("count", lambda: 0, count)
counts.sink(KafkaSink("counts"))
'''
TEST = """from $module import flow

from meander.testing import TestFlow


def test_words_are_counted() -> None:
    with TestFlow(flow) as run:
        run.feed("lines", "to be or", "not to be")
        run.run()
        assert run.states("count") == {"to": 2, "be": 2, "or": 1, "not": 1}
"""
PYPROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$name"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["$requirement"]

[project.optional-dependencies]
dev = ["mypy>=1.13", "pytest>=8.3"]

[tool.setuptools]
py-modules = ["$module"]

[tool.mypy]
strict = true
files = ["$module.py", "test_$module.py"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""
COMPOSE = """# Kafka at 127.0.0.1:9092: docker compose up --detach
services:
  kafka:
    image: apache/kafka:4.3.1
    ports: ["127.0.0.1:9092:9092"]
"""
WORKFLOW = """name: test
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.11"
      - run: pip install --editable '.[dev]'
      - run: mypy
      - run: pytest
"""
README = """# $name

A flow of Meander that counts the words of the topic `lines`.
It needs Python 3.11 and Java 17, or newer.

    pip install --editable '.[dev]'
    pytest
    docker compose up --detach
    export MEANDER_BOOTSTRAP=127.0.0.1:9092
    meander topics create lines counts
    meander run $module.py

`meander dev $module.py` shows results while you edit the flow, with a broker of its own where there
is none. Without Docker, `meander broker start` starts a broker. pip gets Meander by the requirement
in `pyproject.toml`; name an address there that CI can reach.
"""
FILES = {
    "$module.py": FLOW,
    "test_$module.py": TEST,
    "pyproject.toml": PYPROJECT,
    "docker-compose.yml": COMPOSE,
    ".github/workflows/test.yml": WORKFLOW,
    "README.md": README,
}
"""The template of each file, by a template of its path."""
