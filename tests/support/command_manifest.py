"""Commands as a manifest declares them once it was imported: with the path and the digest of each program."""

import hashlib
from pathlib import Path
from typing import Any

import orjson

from deputize.core.settings import ServiceSettings
from tests.support.sandbox_host import PYTHON


def make_command(name: str, *words: str, **fields: Any) -> dict[str, Any]:
    """Make a tool whose program is Python; its arguments are those that `properties` name."""
    program = fields.pop("program", PYTHON)
    properties = {each: {"type": "string"} for each in fields.pop("properties", ())}
    digest = hashlib.sha256(Path(program).read_bytes()).hexdigest() if Path(program).exists() else "0" * 64
    return {
        "name": f"lab.{name}", "description": "Run a program of the lab.", "command": [program, *words],
        "sha256": digest, "input_schema": {"properties": properties}, **fields,
    }  # fmt: skip


def make_command_service(document: Path | None = None, **more: Any) -> ServiceSettings:
    """Settings of the service; without a document, for tests that do not read it."""
    digest = "0" * 64 if document is None else hashlib.sha256(document.read_bytes()).hexdigest()
    fields = {"name": "lab", "kind": "commands", "document": document or "lab.json", "sha256": digest}
    return ServiceSettings.model_validate({**fields, **more})


def write_commands(folder: Path, *tools: dict[str, Any], **more: Any) -> ServiceSettings:
    """Write the manifest of these tools, and return the settings of their service."""
    document = folder / "lab.json"
    document.write_bytes(orjson.dumps({"tools": tools}))
    return make_command_service(document, **more)
