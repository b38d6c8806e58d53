"""Set up sandboxes as `run-sandboxes-in-production.md` says: their supervisor is root, and the gateway another user."""

import asyncio
import json
import os
import pwd
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import jwt
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.store.local_postgres import LocalPostgres
from tests.acceptance.cli.cli_process import (
    BackgroundCommand,
    CompletedCommand,
    find_obstacle_to_other_users,
    make_project,
    run_deputize,
)
from tests.support.database_logins import make_production_database
from tests.support.egress_server import make_ok_response, run_server
from tests.support.policies import OPEN_POLICY
from tests.support.sandbox_host import PYTHON, needs_sandboxes

ACCOUNT = "games"
ISSUER = "https://login.example.com/"
COMMAND = """
name: text.count
description: Count the words of a text.
command: [wc, --words]
stdin: text
input_schema:
  required: [text]
  properties:
    text: {type: string, description: The text., examples: [one two]}
"""
SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = {
        "initialize": {
            "protocolVersion": message.get("params", {}).get("protocolVersion"), "capabilities": {"tools": {}},
            "serverInfo": {"name": "shop", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "find", "description": "Find it.", "inputSchema": {"type": "object"},
                                  "annotations": {"readOnlyHint": True}}]},
        "tools/call": {"content": [{"type": "text", "text": "found"}]},
    }.get(message["method"], {})
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
# What the page says, with a folder and ports of this test's own.
SETTINGS = """
[sandboxes]
folder = "{folder}"

[[identity.issuers]]
issuer = "{issuer}"
audience = "deputize"
jwks_file = "jwks.json"
tenant = "acme"

[builtin.files]
folder = "workspace"
[builtin.build]
test = ["{python}", "-c", "print('built')"]
[builtin.code]
tools = ["hello.*"]

[[servers]]
name = "shop"
command = ["{python}", "-S", "shop.py"]
folder = "programs"
accept_risk = ["unpinned"]
"""
BROWSER_SETTINGS = """
[builtin.browser]
private_hosts = ["localhost:{port}"]
"""
_obstacle = find_obstacle_to_other_users()
pytestmark = [
    needs_sandboxes,
    pytest.mark.requirement("EXE-2"),
    pytest.mark.skipif(bool(_obstacle), reason=_obstacle),
]


@dataclass(frozen=True, kw_only=True)
class ServedProject:
    """A project that a gateway serves with sandboxes of a supervisor which is root."""

    folder: Path
    url: str
    token: str
    web_port: int

    async def call(self, *words: str) -> CompletedCommand:
        return await self.run("call", *words)

    async def run(self, *words: str) -> CompletedCommand:
        reach = ("--url", self.url, "--token", self.token)
        return await asyncio.to_thread(run_deputize, *words, *reach, folder=self.folder)


@pytest_asyncio.fixture(scope="module")
async def served(postgres: LocalPostgres) -> AsyncIterator[ServedProject]:
    base = Path(tempfile.mkdtemp(prefix="deputize-served-", dir="/tmp"))
    base.chmod(0o755)
    uid = pwd.getpwnam(ACCOUNT).pw_uid
    respond = make_ok_response(b"<p>hello</p>", b"Content-Type: text/html")
    with make_production_database(postgres) as logins:
        async with run_server(lambda path, host: respond) as web:
            token = _write_project(base / "site", base / "sandboxes", web.port)
            folder = base / "site"
            migrated = run_deputize("migrate", folder=folder, env=logins.migration_env)
            assert migrated.code == 0, migrated.output
            for path in (folder, *folder.rglob("*")):
                os.chown(path, uid, uid)
            (base / "operator").mkdir()
            sandboxes = {"DEPUTIZE_SANDBOXES__FOLDER": str(base / "sandboxes")}
            env = {**logins.env, "DEPUTIZE_TOOLS__TENANT": "acme"}
            words = ("sandboxes", "serve", "--allow", str(uid))
            with BackgroundCommand(*words, folder=base / "operator", env=sandboxes) as supervisor:
                assert str(uid) in await asyncio.to_thread(supervisor.wait_for_line, "Serving at")
                with BackgroundCommand("serve", "--json", folder=folder, env=env, uid=uid) as gateway:
                    ready = await asyncio.to_thread(gateway.wait_for_line, '{"event": "ready"')
                    yield ServedProject(folder=folder, url=json.loads(ready)["url"], token=token, web_port=web.port)
    shutil.rmtree(base, ignore_errors=True)


def _write_project(folder: Path, sandboxes: Path, web_port: int) -> str:
    make_project(folder)
    for name in ("workspace", "programs"):
        (folder / name).mkdir()
    (folder / "programs" / "shop.py").write_text(SERVER)
    settings = SETTINGS + (BROWSER_SETTINGS if shutil.which("chromium") else "")
    with (folder / "deputize.toml").open("a") as file:
        file.write(settings.format(folder=sandboxes, issuer=ISSUER, python=PYTHON, port=web_port))
    (folder / "text.yaml").write_text(COMMAND)
    imported = run_deputize("import", "text.yaml", folder=folder)
    assert imported.code == 0, imported.output
    (folder / "policies" / "default.cedar").write_text(OPEN_POLICY)
    state = folder / ".deputize"
    state.mkdir(mode=0o700, exist_ok=True)
    (state / "master.key").write_bytes(os.urandom(32))
    (state / "master.key").chmod(0o600)
    key = Ed25519PrivateKey.generate()
    public = {**jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "k1"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))
    now = int(time.time())
    scopes = "build:run code:run browser:read notes:write shop:read shop:write"
    claims = {"iss": ISSUER, "aud": "deputize", "sub": "ana", "iat": now, "exp": now + 3_600, "scope": scopes}
    return jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": "k1"})


async def test_a_program_of_code_run_computes(served: ServedProject) -> None:
    queued = await served.call("code.run", "code=6 * 7")
    call_id = next(word for word in queued.output.split() if word.count("-") == 4)
    done = await served.run("calls", "watch", call_id)
    assert (done.code, "succeeded" in done.output) == (0, True), done.output


async def test_a_command_runs(served: ServedProject) -> None:
    done = await served.call("text.count", "text=one two three")
    assert (done.code, "3" in done.out) == (0, True), done.output


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
async def test_a_browser_shows_a_page(served: ServedProject) -> None:
    done = await served.call("browser.navigate", f"url=http://localhost:{served.web_port}/", "session=new")
    assert (done.code, "hello" in done.out) == (0, True), done.output


async def test_a_build_runs(served: ServedProject) -> None:
    done = await served.call("build.test")
    assert (done.code, "built" in done.out) == (0, True), done.output


async def test_a_server_answers(served: ServedProject) -> None:
    done = await served.call("shop.find")
    assert (done.code, "found" in done.out) == (0, True), done.output
