"""Build the driver of gRPC services, if the settings have any; gRPC is an extra."""

import contextlib
import importlib
import os
from typing import TYPE_CHECKING, Any

from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings

if TYPE_CHECKING:
    from deputize.execute.drivers.grpc import GrpcDriver


def build_grpc_driver(settings: Settings, stack: contextlib.AsyncExitStack) -> "GrpcDriver | None":
    """Build the driver; None if no service is a gRPC service."""
    grpc_services = [each for each in settings.services if each.kind == "grpc"]
    if not grpc_services:
        return None
    # Otherwise each connection that a service ends is a line on the terminal.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        drivers = importlib.import_module("deputize.execute.drivers.grpc")
        channels = importlib.import_module("deputize.execute.drivers.grpc_channels")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"The service {grpc_services[0].name} is a gRPC service, but gRPC is not installed. "
            "Run: pip install 'deputize[grpc]'."
        ) from error
    services: dict[tuple[str, str], Any] = {}
    for each in grpc_services:
        channel = channels.ServiceChannel(each)
        stack.push_async_callback(channel.aclose)
        services[each.tenant or settings.tools.tenant, each.name] = (each, channel)
    driver: GrpcDriver = drivers.GrpcDriver(services)
    return driver
