"""A registry of schemas over HTTP, in the memory of the test: the requests that Meander makes.

A schema of Avro must read what the last one of its subject has written, as registries ask by
default. `login` is that which each request must have.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from threading import Thread
from typing import Any
from urllib.parse import unquote

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.utils import generate_one

Answer = tuple[int, object]
UNKNOWN_SCHEMA = 404, {"error_code": 40403, "message": "Schema not found"}


@dataclass
class SchemaRegistry:
    """A registry with all schemas that it has accepted."""

    login: str | None = None
    port: int = 0
    schemas: list[dict[str, Any]] = field(default_factory=list)
    """The schemas by id, from 1 on, each with its type and references."""
    subjects: dict[str, list[int]] = field(default_factory=dict)
    """The ids of each subject, by version, from 1 on."""
    requests: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answer(self, method: str, path: list[str], body: dict[str, Any]) -> Answer:
        match method, path:
            case "GET", ["schemas", "types"]:
                return 200, ["AVRO", "JSON", "PROTOBUF"]
            case "GET", ["schemas", "ids", asked] if 0 < int(asked) <= len(self.schemas):
                return 200, self.schemas[int(asked) - 1]
            case "POST", ["subjects", subject, "versions"]:
                return self.register(subject, _schema(body))
            case "POST", ["subjects", subject]:
                return self.found(subject, _schema(body))
            case "GET", ["subjects", subject, "versions", version]:
                id = self.subjects[subject][int(version) - 1]
                return 200, {
                    "subject": subject, "version": int(version), "id": id, **self.schemas[id - 1],
                }  # fmt: skip
        return UNKNOWN_SCHEMA

    def register(self, subject: str, schema: dict[str, Any]) -> Answer:
        ids = self.subjects.get(subject, [])
        if schema in self.schemas and self.schemas.index(schema) + 1 in ids:
            return 200, {"id": self.schemas.index(schema) + 1}
        if ids and schema["schemaType"] == "AVRO" and not _reads(schema, self.schemas[ids[-1] - 1]):
            return 409, {"error_code": 409, "message": "Schema being registered is incompatible"}
        if schema not in self.schemas:
            self.schemas.append(schema)
        id = self.schemas.index(schema) + 1
        self.subjects[subject] = [*ids, id]
        return 200, {"id": id}

    def found(self, subject: str, schema: dict[str, Any]) -> Answer:
        for version, id in enumerate(self.subjects.get(subject, []), 1):
            if self.schemas[id - 1] == schema:
                return 200, {"subject": subject, "version": version, "id": id, **schema}
        return UNKNOWN_SCHEMA


def _schema(body: dict[str, Any]) -> dict[str, Any]:
    found = {"schema": body["schema"], "schemaType": body.get("schemaType") or "AVRO"}
    references = body.get("references") or []
    return {**found, "references": references} if references else found


def _reads(reader: dict[str, Any], writer: dict[str, Any]) -> bool:
    """Whether a record of the writer can be read as one of the reader."""
    written, out = parse_schema(json.loads(writer["schema"])), BytesIO()
    schemaless_writer(out, written, generate_one(written))
    out.seek(0)
    try:
        schemaless_reader(out, written, parse_schema(json.loads(reader["schema"])))
    except Exception:
        return False
    return True


@contextmanager
def schema_registry(login: str | None = None) -> Iterator[SchemaRegistry]:
    """Yield a registry that answers on a port of this machine."""
    registry = SchemaRegistry(login)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET", {})

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            self._answer("POST", json.loads(self.rfile.read(length)))

        def _answer(self, method: str, body: dict[str, Any]) -> None:
            path = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")]
            registry.requests.append(f"{method} /{'/'.join(path)}")
            status, found = registry.answer(method, path, body)
            if login is not None:
                expected = f"Basic {b64encode(login.encode()).decode()}"
                if self.headers.get("Authorization") != expected:
                    status, found = 401, {"error_code": 40101, "message": "Unauthorized"}
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.port = server.server_port
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
