"""A real OpenBao, alone on its own storage: it can be sealed, killed and started again, and remembers its secrets."""

import asyncio
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from proofs.kit.child_process import ChildProcess, start_child
from proofs.kit.reserved_port import reserve_port

PROGRAM = Path(sys.executable).with_name("bao")
MOUNT = "secret"
_POLL_SECONDS = 0.05
_CONFIG = """
storage "raft" {{
  path    = "{data}"
  node_id = "one"
  # Alone, it has nobody to wait for before it calls itself the leader.
  performance_multiplier = 1
}}
listener "tcp" {{
  address     = "127.0.0.1:{port}"
  tls_disable = true
}}
api_addr     = "http://127.0.0.1:{port}"
cluster_addr = "http://127.0.0.1:{cluster}"
"""
_MAY_READ = 'path "{mount}/data/*" {{ capabilities = ["read"] }}'


class OpenBaoServer:
    """`async with Bao(folder) as bao:` is unsealed, with a key-value mount and a file with a token that may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token_file = folder / "gateway.token"
        self.child: ChildProcess | None = None
        self._unseal_key = ""
        self._root = ""
        self._port, cluster = reserve_port(), reserve_port()
        self.url = f"http://127.0.0.1:{self._port}"
        data = folder / "data"
        data.mkdir(parents=True)
        config = folder / "bao.hcl"
        config.write_text(_CONFIG.format(data=data, port=self._port, cluster=cluster))
        self._argv = [str(PROGRAM), "server", f"-config={config}"]
        self._http = httpx2.AsyncClient(base_url=self.url, trust_env=False, timeout=60.0)

    async def __aenter__(self) -> Self:
        await self._start()
        init_result = await self._send_request("PUT", "/v1/sys/init", {"secret_shares": 1, "secret_threshold": 1})
        self._unseal_key, self._root = init_result["keys"][0], init_result["root_token"]
        await self.unseal()
        await self._send_request("POST", f"/v1/sys/mounts/{MOUNT}", {"type": "kv", "options": {"version": "2"}})
        await self._send_request("PUT", "/v1/sys/policies/acl/gateway", {"policy": _MAY_READ.format(mount=MOUNT)})
        await self._wait_for_mount()
        self.write_token(await self.create_token())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()
        if self.child is not None:
            self.child.kill()
            await self.child.close()

    def write_token(self, token: str) -> None:
        draft = self.token_file.with_suffix(".draft")
        draft.write_text(token)
        draft.chmod(0o600)
        draft.replace(self.token_file)

    async def create_token(self, policy: str = "gateway") -> str:
        token_result = await self._send_request(
            "POST", "/v1/auth/token/create", {"policies": [policy], "no_default_policy": True}
        )
        return str(token_result["auth"]["client_token"])

    async def put_secret(
        self, tenant: str, name: str, fields: dict[str, Any], *, expires_at: str | None = None
    ) -> None:
        await self._send_request("POST", f"/v1/{MOUNT}/data/{tenant}/{name}", {"data": fields})
        if expires_at is not None:
            metadata = {"custom_metadata": {"expires_at": expires_at}}
            await self._send_request("POST", f"/v1/{MOUNT}/metadata/{tenant}/{name}", metadata)

    async def fetch_document(self) -> dict[str, Any]:
        """The OpenAPI document of its own API, mounts included."""
        document: dict[str, Any] = await self._send_request("GET", "/v1/sys/internal/specs/openapi")
        return document

    @property
    def root_token(self) -> str:
        return self._root

    async def delete_secret(self, tenant: str, name: str) -> None:
        await self._send_request("DELETE", f"/v1/{MOUNT}/data/{tenant}/{name}")

    async def seal(self) -> None:
        await self._send_request("PUT", "/v1/sys/seal")

    async def unseal(self) -> None:
        """Returns once it answers again."""
        await self._send_request("PUT", "/v1/sys/unseal", {"key": self._unseal_key})
        await self._wait_for_status(200)

    async def kill(self) -> None:
        assert self.child is not None
        self.child.kill()
        await self.child.wait_for_exit()

    async def restart(self) -> None:
        """The same storage on the same port; a vault that starts is sealed, so it is unsealed too."""
        await self._start()
        await self.unseal()

    async def _start(self) -> None:
        self.child = await start_child("bao", self._argv, env=dict(os.environ), cwd=self.folder, log_folder=self.folder)
        await self._wait_for_status(200, 429, 501, 503)

    async def _wait_for_status(self, *statuses: int) -> None:
        """429 is a standby, 501 not initialised, 503 sealed."""
        async with asyncio.timeout(120):
            while True:
                assert self.child is not None
                if not self.child.is_alive:
                    raise RuntimeError(f"bao ended:\n{self.child.last_lines()}")
                try:
                    if (await self._http.get("/v1/sys/health")).status_code in statuses:
                        return
                except httpx2.TransportError:
                    pass
                await asyncio.sleep(_POLL_SECONDS)

    async def _wait_for_mount(self) -> None:
        """A new mount is upgraded to version 2 in the background, and refuses everything until then."""
        async with asyncio.timeout(120):
            while True:
                if (
                    await self._http.get(f"/v1/{MOUNT}/data/none", headers=self._build_root_headers())
                ).status_code == 404:
                    return
                await asyncio.sleep(_POLL_SECONDS)

    async def _send_request(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self._http.request(method, path, json=body, headers=self._build_root_headers())
        if not answer.is_success:
            raise RuntimeError(f"bao answered {method} {path} with {answer.status_code}: {answer.text}")
        return answer.json() if answer.content else None

    def _build_root_headers(self) -> dict[str, str]:
        return {"x-vault-token": self._root} if self._root else {}
