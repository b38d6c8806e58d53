"""Other proxies in front of the same server, each installed into a folder of its own and started as its maker says.

What cannot be installed or started here is said and left out.
"""

import asyncio
import os
import shlex
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

import httpx2
import jwt

from proofs.kit.child_process import ChildProcess, ProcessNotReady
from proofs.kit.load import LoadError
from proofs.kit.sandbox import Sandbox
from proofs.proxy.endpoints import ToolEndpoint, ToolUnreachable, build_target, find_tool
from proofs.proxy.rounds import BenchmarkTarget, measure_patiently

_CACHE: Final = Path(__file__).resolve().parents[2] / ".cache" / "peers"
_INSTALL_SECONDS: Final = 1200.0
_START_SECONDS: Final = 120.0
# One that cannot bear so many calls at once is not measured at all.
_CONCURRENCY: Final = 16
_KEY: Final = "sk-proof-0123456789abcdef0123456789abcdef"
_FASTMCP: Final = """
from fastmcp.server import create_proxy
create_proxy("{url}/mcp", name="peer").run(transport="http", host="127.0.0.1", port={port}, log_level="WARNING")
"""
_FASTMCP_SHARED: Final = """
import asyncio
from fastmcp import Client
from fastmcp.server import create_proxy

async def main():
    async with Client("{url}/mcp") as client:
        proxy = create_proxy(client, name="peer")
        await proxy.run_async(transport="http", host="127.0.0.1", port={port}, log_level="WARNING")

asyncio.run(main())
"""
_LITELLM: Final = """
model_list: []
litellm_settings:
  set_verbose: false
general_settings:
  master_key: {key}
mcp_servers:
  shop:
    url: "{url}/mcp"
    transport: "http"
    auth_type: "none"
"""
_ADMIN: Final = "admin@example.com"
_CONTEXTFORGE: Final = {
    "MCPGATEWAY_UI_ENABLED": "false", "MCPGATEWAY_ADMIN_API_ENABLED": "true", "CACHE_TYPE": "memory",
    "LOG_LEVEL": "ERROR", "JWT_SECRET_KEY": _KEY, "AUTH_ENCRYPTION_SECRET": _KEY, "PLATFORM_ADMIN_EMAIL": _ADMIN,
    "PLATFORM_ADMIN_PASSWORD": _KEY, "SSRF_ALLOW_LOCALHOST": "true", "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
    "RATE_LIMITING_ENABLED": "false",
}  # fmt: skip

OnReady = Callable[[str, str], Awaitable[str]]
"""Told its own address and the server's, does what has to be done once it runs, and says where it speaks MCP."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """`argv` and `files` may name `{url}`, `{port}`, `{folder}`; the program is looked for where it was installed."""

    name: str
    requirement: str
    argv: Sequence[str]
    features: str
    missing_features: str
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    token: str | None = None
    on_ready: OnReady | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StartedPeer:
    name: str
    peer: Peer
    target: BenchmarkTarget | None = None
    skip_reason: str = ""

    def __str__(self) -> str:
        if self.target is None:
            return f"{self.name} is not measured: {self.skip_reason}"
        return f"{self.name} ({self.peer.requirement}): {self.peer.features}; not {self.peer.missing_features}"


def _issue_token() -> str:
    now = int(time.time())
    claims = {
        "sub": _ADMIN, "username": _ADMIN, "iss": "mcpgateway", "aud": "mcpgateway-api", "jti": uuid4().hex,
        "iat": now, "exp": now + 86_400, "is_admin": True, "teams": None, "token_use": "session",
        "user": {"email": _ADMIN, "full_name": "Proof", "is_admin": True, "auth_provider": "local"},
    }  # fmt: skip
    return jwt.encode(claims, _KEY, algorithm="HS256")


async def _register_contextforge(peer_url: str, server_url: str) -> str:
    headers = {"authorization": f"Bearer {_CONTEXTFORGE_TOKEN}"}
    async with httpx2.AsyncClient(base_url=peer_url, headers=headers, trust_env=False, timeout=60.0) as client:
        gateway = {"name": "shop", "url": f"{server_url}/mcp", "transport": "STREAMABLEHTTP"}
        (await client.post("/gateways", json=gateway)).raise_for_status()
        tools: list[dict[str, str]] = []
        for _ in range(60):
            tool_list = (await client.get("/tools")).raise_for_status().json()
            tools = tool_list if isinstance(tool_list, list) else tool_list.get("data", tool_list.get("tools", []))
            if tools:
                break
            await asyncio.sleep(0.5)
        server_request = {"server": {"name": "shop", "associated_tools": [tool["id"] for tool in tools]}}
        server_json = (await client.post("/servers", json=server_request)).raise_for_status().json()
    return f"/servers/{server_json['id']}/mcp"


_CONTEXTFORGE_TOKEN: Final = _issue_token()
PEERS: Final = (
    Peer(
        name="fastmcp",
        requirement="fastmcp==4.1.2",
        argv=("python", "peer.py"),
        files={"peer.py": _FASTMCP},
        features="forwards calls, each over a session of its own",
        missing_features="tokens, policy, validation, audit",
    ),
    Peer(
        name="fastmcp_shared",
        requirement="fastmcp==4.1.2",
        argv=("python", "peer.py"),
        files={"peer.py": _FASTMCP_SHARED},
        features="forwards calls over one session that all callers share",
        missing_features="tokens, policy, validation, audit, callers apart from one another",
    ),
    Peer(
        name="contextforge",
        requirement="mcp-contextforge-gateway==1.0.7.post20260921",
        argv=("mcpgateway", "--host", "127.0.0.1", "--port", "{port}"),
        env={**_CONTEXTFORGE, "DATABASE_URL": "sqlite:///{folder}/mcp.db"},
        on_ready=_register_contextforge,
        token=_CONTEXTFORGE_TOKEN,
        features="registers servers, checks a token, forwards calls, keeps metrics",
        missing_features="policy about arguments, a durable audit entry before the answer",
    ),
    Peer(
        name="litellm",
        requirement="litellm[proxy]==1.106.2",
        argv=("litellm", "--config", "config.yaml", "--host", "127.0.0.1", "--port", "{port}"),
        files={"config.yaml": _LITELLM},
        token=_KEY,
        features="checks a key, forwards calls",
        missing_features="policy about arguments, validation, a durable audit entry before the answer",
    ),
)


async def start_peers(sandbox: Sandbox, server: str) -> list[StartedPeer]:
    return [await _start_peer(sandbox, peer, server) for peer in PEERS]


async def _start_peer(sandbox: Sandbox, peer: Peer, server: str) -> StartedPeer:
    try:
        home = await _install_peer(sandbox, peer)
        process, base, path = await _run_peer(sandbox, peer, home, server)
        endpoint = ToolEndpoint(name=peer.name, base=base, path=path, tool="", token=peer.token, modern=False)
        target = BenchmarkTarget(request=await build_target(await find_tool(endpoint)), process=process)
        await measure_patiently(target.request, 1, _CONCURRENCY)
        return StartedPeer(name=peer.name, peer=peer, target=target)
    except (
        ToolUnreachable,
        ProcessNotReady,
        LoadError,
        httpx2.HTTPError,
        OSError,
        EOFError,
        TimeoutError,
        KeyError,
    ) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        sandbox.log(f"{peer.name} is left out: {reason}")
        return StartedPeer(name=peer.name, peer=peer, skip_reason=reason)


async def _install_peer(sandbox: Sandbox, peer: Peer) -> Path:
    home = _CACHE / peer.requirement.partition("[")[0].partition("=")[0]
    mark = home / "installed"
    if not mark.exists() or mark.read_text() != peer.requirement:
        sandbox.log(f"installing {peer.requirement}, once per checkout")
        venv_result = await sandbox.run_command(
            [sys.executable, "-m", "venv", "--clear", str(home)], timeout=_INSTALL_SECONDS
        )
        pip = [
            str(home / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            peer.requirement,
        ]
        install_result = (
            await sandbox.run_command(pip, timeout=_INSTALL_SECONDS) if venv_result.code == 0 else venv_result
        )
        if install_result.code != 0:
            raise ToolUnreachable(f"pip could not install {peer.requirement}: {install_result.stderr.strip()[-300:]}")
        mark.write_text(peer.requirement)
    return home


async def _run_peer(sandbox: Sandbox, peer: Peer, home: Path, server: str) -> tuple[ChildProcess, str, str]:
    folder, port = sandbox.folder / peer.name, sandbox.pick_free_port()
    folder.mkdir()
    template_values = {"url": server, "port": port, "folder": folder, "key": _KEY}
    for name, text in peer.files.items():
        (folder / name).write_text(text.format(**template_values))
    program, *arguments = (each.format(**template_values) for each in peer.argv)
    env = {name: value.format(**template_values) for name, value in peer.env.items()}
    env["PATH"] = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
    sandbox.log(f"starting {peer.name}: {shlex.join([program, *arguments])}")
    child = await sandbox.start_process(peer.name, [str(home / "bin" / program), *arguments], env=env, cwd=folder)
    base = f"http://127.0.0.1:{port}"
    await _wait_until_listening(child, port)
    return child, base, "/mcp" if peer.on_ready is None else await peer.on_ready(base, server)


async def _wait_until_listening(child: ChildProcess, port: int) -> None:
    """Answers to a GET differ from one to the other; a port that takes connections is ready enough."""
    async with asyncio.timeout(_START_SECONDS):
        while child.is_alive:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.2)
            else:
                writer.close()
                return
    raise ToolUnreachable(f"it ended before it listened: {child.last_lines(5)}")
