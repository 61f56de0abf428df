"""The files in `docs/deploy`: manifests, the Dockerfile and the dashboard, as tests read them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from tests.support.doc_blocks import ROOT

DEPLOY = ROOT / "docs/deploy"
MANIFESTS = [*sorted((DEPLOY / "kubernetes").glob("*.yaml"))]
_HERE = Path(__file__).parent
_KUBERNETES = json.loads((_HERE / "kubernetes-1.34.json").read_text())
_GRAFANA = json.loads((_HERE / "grafana-10.1.json").read_text())

Object = dict[str, Any]


def objects(*files: Path) -> list[Object]:
    """Return the objects of manifests, of all of them by default."""
    found = (yaml.safe_load_all(file.read_text()) for file in files or MANIFESTS)
    return [one for documents in found for one in documents]


def named(kind: str, name: str) -> Object:
    """Return the only object of this kind and name."""
    (one,) = (o for o in objects() if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return one


def with_pods() -> dict[str, Object]:
    """Return the objects that start pods, by their names."""
    return {o["metadata"]["name"]: o for o in objects() if "template" in o.get("spec", {})}


def pods() -> dict[str, Object]:
    """Return the template of the pods of each such object, by its name."""
    return {name: dict(one["spec"]["template"]) for name, one in with_pods().items()}


def container(pod: Object) -> Object:
    """Return the only container of a pod."""
    (one,) = pod["spec"]["containers"]
    return dict(one)


def environ_of(one: Object, fields: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a container; `fields` has the value of each field of its pod."""
    found = dict[str, str]()
    for source in one.get("envFrom", []):
        found |= named("Secret", source["secretRef"]["name"])["stringData"]
    for variable in one.get("env", []):
        path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
        found[variable["name"]] = variable["value"] if path is None else fields[path]
    return found


def faults_of_object(one: object) -> list[str]:
    """Return what Kubernetes would refuse in an object."""
    if not isinstance(one, dict) or one.get("kind") not in _KUBERNETES["kinds"]:
        return ["it has no known kind"]
    schema = {"$ref": f"#/$defs/{_KUBERNETES['kinds'][one['kind']]}", "$defs": _KUBERNETES["$defs"]}
    needed = [f"{name} is missing" for name in ("apiVersion", "metadata") if name not in one]
    return needed + _faults(schema, one)


def faults_of_dashboard(one: object) -> list[str]:
    """Return what Grafana does not know in a dashboard."""
    return _faults(_GRAFANA, one)


def _faults(schema: Object, one: object) -> list[str]:
    errors = jsonschema.Draft202012Validator(schema).iter_errors(one)
    return [f"{error.json_path}: {error.message}" for error in errors]


def instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    """Yield each instruction of a Dockerfile and its text, with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE)
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.strip().partition(" ")
            yield word, " ".join(rest.split())


def variables_of(dockerfile: Path) -> dict[str, str]:
    """Return the environment that a Dockerfile sets."""
    texts = [text for word, text in instructions(dockerfile) if word == "ENV"]
    pairs = (pair.partition("=") for text in texts for pair in shlex.split(text))
    return {name: value for name, _, value in pairs}
