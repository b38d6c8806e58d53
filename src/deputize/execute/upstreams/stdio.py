"""Servers that are programs, started here and spoken to over their own input and output."""

from collections.abc import Callable
from typing import Any

from deputize.core.clock import Clock
from deputize.core.errors import UpstreamUnavailable
from deputize.core.settings import McpServer
from deputize.execute.upstreams.messages import Ask, Introduction


class Programs:
    def __init__(self, server: McpServer, clock: Clock, *, key: bytes, changed: Callable[[], None]) -> None:
        self._server = server

    async def introduce(self, secret: str | None) -> Introduction:
        raise UpstreamUnavailable(f"the program of {self._server.name} cannot be started", nothing_happened=True)

    async def ask(self, ask: Ask) -> dict[str, Any]:
        raise UpstreamUnavailable(f"the program of {self._server.name} cannot be started", nothing_happened=True)

    def listen(self, secret: str | None) -> None:
        pass

    async def aclose(self) -> None:
        pass
