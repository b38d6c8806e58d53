"""The first ten calls of three MCP clients that fill in only what a tool's schema requires.

Each succeeds, waits for approval, or is refused for what it says, in words that name it: never for a key or a field
that nobody knows of, or for a result that its own schema does not allow.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, field_validator

from tests.acceptance.cli.cli_process import BackgroundCommand, make_project, run_deputize
from tests.acceptance.clients.mcp_clients import FASTMCP, NPM_PACKAGES, Inspector, McpClient, open_library

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not os.environ.get("TESTS_FULL"), reason="installs clients: set TESTS_FULL=1"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed"),
]
_FILES_SERVER = "@modelcontextprotocol/server-filesystem"
_FILES_VERSION = "2026.8.31"
_INSTALL_SECONDS = 900


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call, how it ends, and words of the answer. CLIENT stands for the client, LAST for the id of its last call."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "succeeded"
    words: str


FRESH = (
    Call(tool="hello__greet", arguments={"name": "Ana"}, words="Hello, Ana!"),
    Call(tool="hello__greet", kind="refused", words="/name is required"),
    Call(tool="hello__remember", arguments={"text": "buy milk"}, words='"text":"buy milk"'),
    Call(tool="hello__remember", arguments={"text": "buy milk"}, words='"text":"buy milk"'),
    Call(tool="calls_undo", arguments={"call_id": "LAST"}, words="can undo 1 of 1 calls"),
    Call(
        tool="hello__forget",
        arguments={"number": 1, "idempotency_key": "CLIENT-1"},
        kind="pending",
        words="Nothing was done yet: this call needs approval",
    ),
    Call(tool="calls_get", arguments={"call_id": "LAST"}, kind="pending", words="needs approval"),
    Call(tool="calls_cancel", arguments={"call_id": "LAST"}, words="nothing was executed"),
    Call(
        tool="hello__forget",
        arguments={"number": 99, "idempotency_key": "CLIENT-2"},
        kind="refused",
        words="there is no note 99",
    ),
    Call(
        tool="calls_batch",
        arguments={"calls": [{"tool": "hello__greet", "arguments": {"name": "Bo"}}]},
        words="Hello, Bo!",
    ),
)
OBSERVED = (
    Call(tool="files__list_allowed_directories", words="DATA"),
    Call(tool="files__list_directory", arguments={"path": "DATA"}, words="[FILE] a.txt"),
    Call(tool="files__read_text_file", arguments={"path": "DATA/a.txt"}, words="text of a"),
    Call(tool="files__read_multiple_files", arguments={"paths": ["DATA/a.txt"]}, words="text of a"),
    Call(
        tool="files__write_file",
        arguments={"path": "DATA/CLIENT.txt", "content": "one"},
        words="Successfully wrote to DATA/CLIENT.txt",
    ),
    Call(
        tool="files__edit_file",
        arguments={"path": "DATA/CLIENT.txt", "edits": [{"oldText": "one", "newText": "two"}]},
        words="+two",
    ),
    Call(
        tool="files__move_file",
        arguments={"source": "DATA/CLIENT.txt", "destination": "DATA/CLIENT-moved.txt"},
        words="Successfully moved DATA/CLIENT.txt to DATA/CLIENT-moved.txt",
    ),
    Call(tool="files__read_text_file", kind="refused", words="/path is required"),
    Call(
        tool="files__read_text_file",
        arguments={"path": "DATA/none.txt"},
        kind="refused",
        words="no such file or directory, open 'DATA/none.txt'",
    ),
    Call(
        tool="files__read_text_file",
        arguments={"path": "/etc/hostname"},
        kind="refused",
        words="path outside allowed directories: /etc/hostname not in DATA",
    ),
)
SERVICE = (
    Call(tool="pet_shop__list_pets", words='"name":"Rex"'),
    Call(tool="pet_shop__get_pet", arguments={"id": 1}, words='"name":"Rex"'),
    Call(tool="pet_shop__get_pet", kind="refused", words="/id is required"),
    Call(tool="pet_shop__get_pet", arguments={"id": 99}, kind="refused", words="no such pet"),
    Call(tool="pet_shop__create_pet", arguments={"body": {"name": "CLIENT"}}, words='"name":"CLIENT"'),
    Call(tool="pet_shop__create_pet", arguments={"body": {"tag": "x"}}, kind="refused", words="/body/name is required"),
    Call(
        tool="pet_shop__create_pet",
        arguments={"body": {"name": " "}},
        kind="refused",
        words="(HTTP 422): Value error, a pet needs a name",
    ),
    Call(
        tool="pet_shop__delete_pet",
        arguments={"id": 1, "idempotency_key": "CLIENT-1"},
        kind="pending",
        words="Nothing was done yet: this call needs approval",
    ),
    Call(tool="calls_get", arguments={"call_id": "LAST"}, kind="pending", words="needs approval"),
    Call(tool="pet_shop__list_pets", words='"name":"CLIENT"'),
)


class Pet(BaseModel):
    name: str
    tag: str | None = None

    @field_validator("name")
    @classmethod
    def check_name(cls, name: str) -> str:
        if not name.strip():
            raise ValueError("a pet needs a name")
        return name


class StoredPet(Pet):
    id: int


def make_service() -> FastAPI:
    """An API as people write it: FastAPI describes the error of a wrong argument, and not the 404."""
    app, pets = FastAPI(title="Pet shop"), {1: StoredPet(id=1, name="Rex")}

    @app.get("/pets")
    def list_pets(tag: str | None = None) -> list[StoredPet]:
        return [each for each in pets.values() if tag in (None, each.tag)]

    @app.get("/pets/{id}")
    def get_pet(id: int) -> StoredPet:
        if id not in pets:
            raise HTTPException(404, "no such pet")
        return pets[id]

    @app.post("/pets", status_code=201)
    def create_pet(pet: Pet) -> StoredPet:
        stored = pets[len(pets) + 1] = StoredPet(id=len(pets) + 1, **pet.model_dump())
        return stored

    @app.delete("/pets/{id}", status_code=204)
    def delete_pet(id: int) -> None:
        del pets[id]

    return app


@contextmanager
def run_service() -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(make_service(), port=0, log_level="error"))
    listener = server.config.bind_socket()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    options = ("--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
    command = ["npm", "install", *options, *NPM_PACKAGES, f"{_FILES_SERVER}@{_FILES_VERSION}"]
    subprocess.run(command, cwd=folder, check=True, timeout=_INSTALL_SECONDS)
    return folder / "node_modules"


@pytest.fixture(scope="module")
def fastmcp_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fastmcp")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=_INSTALL_SECONDS)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", FASTMCP], check=True, timeout=_INSTALL_SECONDS)
    return python


@pytest.fixture(scope="module", params=["fresh", "observed", "service"])
def project(request: pytest.FixtureRequest, packages: Path) -> Iterator[tuple[str, Path]]:
    """A project whose gateway runs, in a folder that a database under another account can pass through."""
    workspace = Path(tempfile.mkdtemp(prefix="deputize-clients-"))
    workspace.chmod(0o711)
    folder = workspace / "shop"
    start = {"fresh": _start_fresh, "observed": _start_observed, "service": _start_service}[request.param]
    try:
        with start(folder, packages) as gateway:
            gateway.wait_for_line("▶ MCP")
            if request.param == "observed":
                tested = run_deputize("servers", "test", "files", folder=folder)
                assert tested.code == 0, tested.output
            yield request.param, folder
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def _start_fresh(folder: Path, _: Path) -> AbstractContextManager[BackgroundCommand]:
    return BackgroundCommand("dev", folder=make_project(folder))


def _start_observed(folder: Path, packages: Path) -> AbstractContextManager[BackgroundCommand]:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a.txt").write_text("text of a")
    words = [str(packages / _FILES_SERVER / "dist" / "index.js"), str(folder / "data")]
    servers = {"files": {"command": str(packages / "node" / "bin" / "node"), "args": words}}
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    return BackgroundCommand("observe", ".mcp.json", "--port", "0", folder=folder)


@contextmanager
def _start_service(folder: Path, _: Path) -> Iterator[BackgroundCommand]:
    make_project(folder)
    with run_service() as url:
        words = ("import", f"{url}/openapi.json", "--url", url, "--writes", "create_pet_pets_post")
        done = run_deputize(*words, folder=folder)
        assert done.code == 0, done.output
        with BackgroundCommand("dev", folder=folder) as gateway:
            yield gateway


@pytest.mark.parametrize("name", ["sdk", "fastmcp", "inspector"])
def test_the_first_ten_calls_need_nothing_that_a_client_leaves_out(
    name: str, project: tuple[str, Path], packages: Path, fastmcp_python: Path, tmp_path: Path
) -> None:
    kind, folder = project
    url = json.loads((folder / ".deputize" / "dev.json").read_text())["url"] + "/mcp"
    token = (folder / ".deputize" / "agent-token").read_text().strip()
    client: AbstractContextManager[McpClient]
    if name == "inspector":
        client = nullcontext(Inspector(packages, tmp_path, url, token))
    else:
        client = open_library(fastmcp_python if name == "fastmcp" else Path(sys.executable), name, url, token)
    calls, last, faults = {"fresh": FRESH, "observed": OBSERVED, "service": SERVICE}[kind], "", []
    with client as opened:
        for call in calls:
            fill = {"CLIENT": name, "LAST": last, "DATA": str(folder / "data")}
            arguments = json.loads(_fill(json.dumps(dict(call.arguments)), fill))
            assert set(arguments) <= set(opened.required[call.tool]), f"{call.tool} is sent what it does not require"
            answer = opened.call_tool(call.tool, arguments)
            last = answer.call_id or last
            print(f"{name} · {kind} · {call.tool} {arguments} → {answer.kind}: {answer.text[:200]!r}")
            if answer.kind != call.kind or _fill(call.words, fill) not in answer.text:
                faults.append(f"{call.tool} {arguments}: {answer.kind} {answer.text!r}")
    assert faults == []
    assert len(calls) == 10


def _fill(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text
