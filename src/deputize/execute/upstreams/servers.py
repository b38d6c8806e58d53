"""The MCP servers of this process: each reached over lines that are opened once and kept.

Above: `drivers/mcp.py`, which runs tools, and `lifecycle/servers/`, which looks at what servers declare.
Below: `http.py` and `stdio.py`, which carry messages, and `protocol.py`, which knows both eras of them.
"""

from collections.abc import Callable
from typing import Any

from deputize.core.clock import Clock
from deputize.core.definition import Secret, Told
from deputize.core.errors import ServerNotFound
from deputize.core.servers import Discovered
from deputize.core.settings import McpServer, Settings


class Upstreams:
    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._servers = {(each.tenant or settings.tools.tenant, each.name): each for each in settings.servers}
        # By tenant and server, the digest of each tool as it was last seen; absent until it was seen at all.
        self._seen: dict[tuple[str, str], dict[str, str]] = {}
        self._agreed: dict[tuple[str, str], str] = {}

    def named(self, tenant: str) -> list[McpServer]:
        return [each for (owner, _), each in self._servers.items() if owner == tenant]

    def settings_of(self, tenant: str, server: str) -> McpServer:
        try:
            return self._servers[tenant, server]
        except KeyError:
            raise ServerNotFound(f"there is no server {server[:64]}", details={"server": server[:64]}) from None

    async def discover(self, tenant: str, server: str, credential: Secret | None, seconds: float) -> Discovered:
        """What the server declares now, every page of it."""
        raise NotImplementedError

    async def call(
        self,
        tenant: str,
        server: str,
        tool: str,
        arguments: dict[str, Any],
        *,
        meta: dict[str, Any],
        credential: Secret | None,
        seconds: float,
        tell: Callable[[Told], None] | None = None,
    ) -> dict[str, Any]:
        """The server's `CallToolResult` as it came, or the Problem that says what is known of the call."""
        raise NotImplementedError

    def watch(self, changed: Callable[[str, str], None]) -> None:
        """`changed(tenant, server)` is called when a server says that its tools changed, or its line was lost."""
        raise NotImplementedError

    def seen(self, tenant: str, server: str) -> dict[str, str] | None:
        """Each tool's digest as it was last seen; None for a server nobody has reached yet."""
        return self._seen.get((tenant, server))

    def agree(self, tenant: str, server: str, instructions_digest: str | None) -> None:
        """Which instructions of the server somebody agreed to (`Discovered.instructions_digest`); None takes it back.

        Whoever keeps the pins says so before its tools are called, and again whenever they move. While the server says
        anything else, its writes stop; a server of which nothing was said here is compared by its tools alone.
        """
        self._agreed.pop((tenant, server), None)
        if instructions_digest is not None:
            self._agreed[tenant, server] = instructions_digest

    async def aclose(self) -> None:
        """Ends every line and every program, whatever they are doing."""
        raise NotImplementedError
