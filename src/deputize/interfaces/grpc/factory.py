"""Open the gRPC listener if the settings name a port; gRPC is an extra."""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings
from deputize.operations.gateway import Gateway

if TYPE_CHECKING:
    from deputize.interfaces.grpc.listener import GrpcListener


@contextlib.asynccontextmanager
async def open_grpc_listener(
    settings: Settings, get_gateway: Callable[[], Gateway], shutdown: asyncio.Event
) -> "AsyncIterator[GrpcListener | None]":
    """Bind the port of gRPC, so that a port in use is reported before the gateway opens; None if gRPC is off.

    The listener is started and stopped inside the block, before the gateway closes. The end of the block makes sure.
    """
    if settings.grpc.port is None:
        yield None
        return
    try:
        module = importlib.import_module("deputize.interfaces.grpc.listener")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "A port for gRPC is set under [grpc], but gRPC is not installed. Run: pip install 'deputize[grpc]'."
        ) from error
    listener: GrpcListener = module.GrpcListener(settings, get_gateway, shutdown)
    try:
        listener.bind()
        yield listener
    finally:
        await listener.stop_now()
