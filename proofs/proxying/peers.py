"""Other proxies in front of the same server, each installed into a folder of its own and started as its maker says.

What cannot be installed or started here is said and left out. Above: `proxy.py`, full form only. Below: pip, and
`targets.py`.
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

from proofs.kit.child import Child, NotReady
from proofs.kit.load import LoadFailed
from proofs.kit.world import World
from proofs.proxying.measured import Lane, patiently
from proofs.proxying.targets import NoCall, Way, target_of, tool_at

_CACHE: Final = Path(__file__).resolve().parents[2] / ".cache" / "peers"
_INSTALL_SECONDS: Final = 1200.0
_START_SECONDS: Final = 120.0
# One that cannot bear so many calls at once is not measured at all.
_AT_ONCE: Final = 16
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

Ready = Callable[[str, str], Awaitable[str]]
"""Told its own address and the server's, does what has to be done once it runs, and says where it speaks MCP."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """`argv` and `files` may name `{url}`, `{port}`, `{folder}`; the program is looked for where it was installed."""

    name: str
    wants: str
    argv: Sequence[str]
    does: str
    does_not: str
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    token: str | None = None
    ready: Ready | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    name: str
    peer: Peer
    lane: Lane | None = None
    why_not: str = ""

    def __str__(self) -> str:
        if self.lane is None:
            return f"{self.name} is not measured: {self.why_not}"
        return f"{self.name} ({self.peer.wants}): {self.peer.does}; not {self.peer.does_not}"


def _token() -> str:
    now = int(time.time())
    claims = {
        "sub": _ADMIN, "username": _ADMIN, "iss": "mcpgateway", "aud": "mcpgateway-api", "jti": uuid4().hex,
        "iat": now, "exp": now + 86_400, "is_admin": True, "teams": None, "token_use": "session",
        "user": {"email": _ADMIN, "full_name": "Proof", "is_admin": True, "auth_provider": "local"},
    }  # fmt: skip
    return jwt.encode(claims, _KEY, algorithm="HS256")


async def _register(own: str, server: str) -> str:
    headers = {"authorization": f"Bearer {_CONTEXTFORGE_TOKEN}"}
    async with httpx2.AsyncClient(base_url=own, headers=headers, trust_env=False, timeout=60.0) as client:
        gateway = {"name": "shop", "url": f"{server}/mcp", "transport": "STREAMABLEHTTP"}
        (await client.post("/gateways", json=gateway)).raise_for_status()
        tools: list[dict[str, str]] = []
        for _ in range(60):
            listed = (await client.get("/tools")).raise_for_status().json()
            tools = listed if isinstance(listed, list) else listed.get("data", listed.get("tools", []))
            if tools:
                break
            await asyncio.sleep(0.5)
        made = {"server": {"name": "shop", "associated_tools": [tool["id"] for tool in tools]}}
        said = (await client.post("/servers", json=made)).raise_for_status().json()
    return f"/servers/{said['id']}/mcp"


_CONTEXTFORGE_TOKEN: Final = _token()
PEERS: Final = (
    Peer(
        name="fastmcp",
        wants="fastmcp==4.1.2",
        argv=("python", "peer.py"),
        files={"peer.py": _FASTMCP},
        does="forwards calls, each over a session of its own",
        does_not="tokens, policy, validation, audit",
    ),
    Peer(
        name="fastmcp_shared",
        wants="fastmcp==4.1.2",
        argv=("python", "peer.py"),
        files={"peer.py": _FASTMCP_SHARED},
        does="forwards calls over one session that all callers share",
        does_not="tokens, policy, validation, audit, callers apart from one another",
    ),
    Peer(
        name="contextforge",
        wants="mcp-contextforge-gateway==1.0.7.post20260921",
        argv=("mcpgateway", "--host", "127.0.0.1", "--port", "{port}"),
        env={**_CONTEXTFORGE, "DATABASE_URL": "sqlite:///{folder}/mcp.db"},
        ready=_register,
        token=_CONTEXTFORGE_TOKEN,
        does="registers servers, checks a token, forwards calls, keeps metrics",
        does_not="policy about arguments, a durable audit entry before the answer",
    ),
    Peer(
        name="litellm",
        wants="litellm[proxy]==1.106.2",
        argv=("litellm", "--config", "config.yaml", "--host", "127.0.0.1", "--port", "{port}"),
        files={"config.yaml": _LITELLM},
        token=_KEY,
        does="checks a key, forwards calls",
        does_not="policy about arguments, validation, a durable audit entry before the answer",
    ),
)


async def start_peers(world: World, server: str) -> list[Started]:
    return [await _started(world, peer, server) for peer in PEERS]


async def _started(world: World, peer: Peer, server: str) -> Started:
    try:
        home = await _installed(world, peer)
        process, base, path = await _run(world, peer, home, server)
        way = Way(name=peer.name, base=base, path=path, tool="", token=peer.token, modern=False)
        lane = Lane(target=await target_of(await tool_at(way)), process=process)
        await patiently(lane.target, 1, _AT_ONCE)
        return Started(name=peer.name, peer=peer, lane=lane)
    except (NoCall, NotReady, LoadFailed, httpx2.HTTPError, OSError, EOFError, TimeoutError, KeyError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        world.say(f"{peer.name} is left out: {why}")
        return Started(name=peer.name, peer=peer, why_not=why)


async def _installed(world: World, peer: Peer) -> Path:
    home = _CACHE / peer.wants.partition("[")[0].partition("=")[0]
    mark = home / "installed"
    if not mark.exists() or mark.read_text() != peer.wants:
        world.say(f"installing {peer.wants}, once per checkout")
        made = await world.run([sys.executable, "-m", "venv", "--clear", str(home)], timeout=_INSTALL_SECONDS)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", peer.wants]
        done = await world.run(pip, timeout=_INSTALL_SECONDS) if made.code == 0 else made
        if done.code != 0:
            raise NoCall(f"pip could not install {peer.wants}: {done.stderr.strip()[-300:]}")
        mark.write_text(peer.wants)
    return home


async def _run(world: World, peer: Peer, home: Path, server: str) -> tuple[Child, str, str]:
    folder, port = world.folder / peer.name, world.free_port()
    folder.mkdir()
    facts = {"url": server, "port": port, "folder": folder, "key": _KEY}
    for name, text in peer.files.items():
        (folder / name).write_text(text.format(**facts))
    program, *words = (each.format(**facts) for each in peer.argv)
    env = {name: value.format(**facts) for name, value in peer.env.items()}
    env["PATH"] = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
    world.say(f"starting {peer.name}: {shlex.join([program, *words])}")
    child = await world.start(peer.name, [str(home / "bin" / program), *words], env=env, cwd=folder)
    base = f"http://127.0.0.1:{port}"
    await _listening(child, port)
    return child, base, "/mcp" if peer.ready is None else await peer.ready(base, server)


async def _listening(child: Child, port: int) -> None:
    """Answers to a GET differ from one to the other; a port that takes connections is ready enough."""
    async with asyncio.timeout(_START_SECONDS):
        while child.alive:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.2)
            else:
                writer.close()
                return
    raise NoCall(f"it ended before it listened: {child.tail(5)}")
