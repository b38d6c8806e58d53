"""Start what runs beside calls, and have it stopped in reverse."""

import contextlib
from typing import Protocol


class Service(Protocol):
    """A service that runs until it is stopped."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


async def start_services(stack: contextlib.AsyncExitStack, *services: Service) -> None:
    """Start services one after the other; the stack stops them in reverse."""
    for service in services:
        await service.start()
        stack.push_async_callback(service.stop)
