"""Connect to gRPC services; every host is resolved, checked and pinned to its addresses before connecting.

gRPC resolves and connects by itself, so it is given the addresses that the rules of `egress.py` allow, and the host
only as the name in TLS and in requests. It uses no proxy, no service configuration and no retries of its own.
"""

import asyncio
from collections.abc import Sequence
from ipaddress import IPv4Address, ip_address
from typing import Any, Final
from urllib.parse import urlsplit

import grpc

from deputize.core.errors import EgressDenied, Problem, UpstreamUnavailable
from deputize.core.settings import ServiceSettings
from deputize.execute.egress import HostResolver, normalize_host, resolve_allowed_addresses, resolve_host
from deputize.execute.upstreams.faults import UpstreamNotAtFault

_CONNECT_SECONDS: Final = 5.0
# How long calls on a connection that is no longer used may take.
_CLOSE_SECONDS: Final = 300.0
_MAX_METADATA_BYTES: Final = 16_384
_FAILED_STATES: Final = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


class ServiceChannel:
    """The connection to one service, which is made anew when the host's addresses change or it fails."""

    def __init__(self, settings: ServiceSettings, resolver: HostResolver = resolve_host) -> None:
        parts = urlsplit(settings.url)
        self._settings = settings
        self._is_secure = parts.scheme == "https"
        self._host = normalize_host(settings.hosts[0])
        self._port = parts.port or (443 if self._is_secure else 80)
        # Only the operator's own host may be private, and only if the settings do not forbid it.
        self._private_hosts = frozenset[str]() if settings.public_only else frozenset({self._host})
        self._resolver = resolver
        self._addresses: Sequence[str] = ()
        self._channel: Any = None
        self._close_tasks: set[asyncio.Task[None]] = set()

    async def open(self, seconds: float) -> Any:
        """Return a connected channel. A problem here has `nothing_happened`: nothing was sent."""
        try:
            async with asyncio.timeout(min(seconds, _CONNECT_SECONDS)):
                if not self._is_secure and self._host not in self._private_hosts:
                    raise EgressDenied(f"the host {self._host} may be reached over https only")
                addresses = await resolve_allowed_addresses(self._host, self._port, self._private_hosts, self._resolver)
                # Many name servers answer in another order each time.
                if self._channel is None or set(addresses) != set(self._addresses):
                    self._drop_channel()
                    self._channel, self._addresses = self._make_channel(addresses), addresses
                channel = self._channel
                await self._wait_until_ready(channel, addresses)
        except TimeoutError:
            raise UpstreamUnavailable(
                f"the host {self._host} did not accept a connection in time", nothing_happened=True
            ) from None
        except Problem as problem:
            raise problem.replace(nothing_happened=True) from problem.__cause__
        return channel

    async def _wait_until_ready(self, channel: Any, addresses: Sequence[str]) -> None:
        try:
            while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                if state in _FAILED_STATES:
                    if channel is self._channel:
                        self._drop_channel()
                    raise self._build_problem(addresses)
                await channel.wait_for_state_change(state)
        except (grpc.aio.UsageError, grpc.aio.InternalError) as error:
            # Another call dropped the connection.
            raise self._build_problem(addresses) from error

    def _build_problem(self, addresses: Sequence[str]) -> Problem:
        """Say why the connection to these addresses ended: the host has others now, or it failed."""
        if set(addresses) != set(self._addresses):
            return UpstreamNotAtFault(f"the addresses of the host {self._host} changed")
        return UpstreamUnavailable(f"the host {self._host} cannot be reached over gRPC")

    def _make_channel(self, addresses: Sequence[str]) -> Any:
        first = ip_address(addresses[0])
        scheme = "ipv4" if isinstance(first, IPv4Address) else "ipv6"
        same_kind = [each for each in addresses if ip_address(each).version == first.version]
        targets = [f"{each}:{self._port}" if scheme == "ipv4" else f"[{each}]:{self._port}" for each in same_kind]
        options: list[tuple[str, Any]] = [
            ("grpc.default_authority", urlsplit(self._settings.url).netloc),
            ("grpc.enable_http_proxy", 0),
            # Else GRPC_ADDRESS_HTTP_PROXY in the environment is used all the same.
            ("grpc.address_http_proxy_enabled_addresses", ""),
            ("grpc.enable_retries", 0),
            ("grpc.service_config_disable_resolution", 1),
            # Of a compressed answer, gRPC limits what it decompresses to, while it does.
            ("grpc.max_receive_message_length", self._settings.max_response_bytes),
            ("grpc.max_send_message_length", -1),
            # Between the two, gRPC would refuse some answers at random.
            ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
            ("grpc.primary_user_agent", "deputize"),
        ]
        target = f"{scheme}:{','.join(targets)}"
        if not self._is_secure:
            return grpc.aio.insecure_channel(target, options)
        options.append(("grpc.ssl_target_name_override", self._host))
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(), options)

    def _drop_channel(self) -> None:
        """Use the channel for no new call; those in progress may end on it."""
        if self._channel is not None:
            task = asyncio.create_task(self._channel.close(_CLOSE_SECONDS), name="grpc-channel-close")
            self._close_tasks.add(task)
            task.add_done_callback(self._close_tasks.discard)
            self._channel = None

    async def aclose(self) -> None:
        for each in self._close_tasks:
            each.cancel()
        await asyncio.gather(*self._close_tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close(None)
