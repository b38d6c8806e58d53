"""Keep this process's transports to MCP servers, send requests through them, and remember what servers declare.

`drivers/mcp.py` calls tools through the pool; `operations/servers/` discovers and pins definitions.
`http_transport.py` and `stdio_transport.py` carry the messages; `discovery.py` lists the definitions.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NotRequired, Protocol, TypedDict, Unpack
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

from deputize.core.clock import Clock
from deputize.core.contract.tools import Secret, ToolProgress
from deputize.core.errors import (
    DeadlineExceeded,
    Problem,
    SecretsProblem,
    ServerNotFound,
    ToolFailed,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from deputize.core.mcp.elicitation import NO_CAPABILITIES, ClientCapability, InputRound
from deputize.core.mcp.headers import Path, build_param_headers, read_header_params
from deputize.core.mcp.resources import NO_PINNED_RESOURCES, PinnedResources
from deputize.core.mcp.servers import CALL_TOOL, DefinitionKind, DiscoveredServer
from deputize.core.sensitive.known_paths import KnownPaths
from deputize.core.settings import McpServerSettings, Settings
from deputize.core.value_types import frozen
from deputize.execute.deadlines import Deadlines
from deputize.execute.egress import Egress
from deputize.execute.shared_folders import SharedFolders
from deputize.execute.upstreams.discovery import list_definitions
from deputize.execute.upstreams.faults import UpstreamNotAtFault
from deputize.execute.upstreams.http_transport import HttpTransport
from deputize.execute.upstreams.jsonrpc import ServerInfo, UpstreamRequest, UpstreamRpcError
from deputize.execute.upstreams.program_files import DOWNLOAD_SECONDS, downloads_program, list_data_folders
from deputize.execute.upstreams.stdio_transport import StdioTransport
from deputize.execute.upstreams.subprocess_server import ServerSandboxes
from deputize.sandboxes.client import SandboxClient
from deputize.sandboxes.port import Backend

# How long connecting to a host may take.
_CONNECT_SECONDS = 10.0
_ServerKey = tuple[str, str]
_ViewerKey = tuple[str, str, str]
# The number of users' own discoveries that are kept.
MOST_VIEWERS = 256


class UpstreamTransport(Protocol):
    """A transport to one server, for all callers and credentials."""

    async def fetch_server_info(self, secret: str | None) -> ServerInfo: ...

    def send_request(self, request: UpstreamRequest) -> Coroutine[Any, Any, dict[str, Any]]: ...

    def listen_for_changes(self, secret: str | None) -> None: ...

    async def aclose(self) -> None: ...


class RequestOptions(TypedDict):
    """The options of a request to a server."""

    meta: dict[str, Any]
    credential: Secret | None
    seconds: float
    report_progress: NotRequired[Callable[[ToolProgress], None] | None]
    # The capabilities of the waiting client, and its responses to the server's previous input requests.
    client_capabilities: NotRequired[frozenset[ClientCapability]]
    input_round: NotRequired[InputRound | None]


@frozen
class _DiscoveryRecord:
    """What a server declared at its last discovery."""

    discovered_at: float
    digests: dict[str, str]
    instructions_digest: str
    # By tool, the arguments that it wants in headers.
    header_params: dict[str, dict[Path, str]]
    # The supported methods other than `tools/call`.
    methods: frozenset[str] = frozenset()


class UpstreamPool:
    """The transports, discoveries and pins of all MCP servers in the settings."""

    def __init__(self, settings: Settings, clock: Clock | None = None, folders: SharedFolders | None = None) -> None:
        self.clock = clock or Clock()
        self._servers = {(each.tenant or settings.tools.tenant, each.name): each for each in settings.servers}
        # Credentials are identified by an HMAC with this key, which never leaves this process.
        self._key = self.clock.random_bytes(32)
        self._egress: Egress | None = None
        # Its supervisor is started with the first program that needs one.
        self._sandboxes = ServerSandboxes(
            client=SandboxClient.from_settings(settings), folders=folders or SharedFolders(settings)
        )
        self._transports: dict[_ServerKey, UpstreamTransport] = {}
        # By tenant, server and viewer: a user, or "" for the gateway itself.
        self._discoveries: OrderedDict[_ViewerKey, _DiscoveryRecord] = OrderedDict()
        self._discovery_locks: WeakValueDictionary[_ViewerKey, asyncio.Lock] = WeakValueDictionary()
        self._pinned_instructions: dict[_ServerKey, str] = {}
        self._pinned_resources: dict[_ServerKey, PinnedResources] = {}
        self._change_listeners: list[Callable[[str, str], None]] = []
        self._deadlines = Deadlines()
        self._is_closed = False

    def list_servers(self, tenant: str) -> list[McpServerSettings]:
        """List the settings of a tenant's servers."""
        return [each for (owner, _), each in self._servers.items() if owner == tenant]

    def get_settings(self, tenant: str, server: str) -> McpServerSettings:
        """Return a server's settings, or raise `ServerNotFound`."""
        try:
            return self._servers[tenant, server]
        except KeyError:
            raise ServerNotFound(f"there is no server {server[:64]}", details={"server": server[:64]}) from None

    def find_backend(self, tenant: str, server: str) -> Backend | None:
        """Find the backend of the sandbox that a server's program is started in; None if it is started in none."""
        settings = self.get_settings(tenant, server)
        return self._sandboxes.client.backend if settings.command and settings.sandbox else None

    async def discover_server(
        self, tenant: str, server: str, credential: Secret | None, seconds: float, *, viewer: str = ""
    ) -> DiscoveredServer:
        """Fetch everything the server declares now, and remember it for the viewer.

        With user credentials a server may declare different definitions to each user, so a viewer's discovery applies
        to that viewer's calls only.
        """
        transport, request = self._get_transport(tenant, server), UpstreamRequest(method="tools/list")
        secret, settings = None if credential is None else credential.reveal(), self.get_settings(tenant, server)
        discovery: DiscoveredServer = await self._run_with_deadline(
            self._fetch_discovery(transport, secret, settings), request, server, seconds
        )
        self._discoveries[tenant, server, viewer] = _DiscoveryRecord(
            discovered_at=self.clock.monotonic(),
            digests=discovery.digests,
            instructions_digest=discovery.instructions_digest,
            header_params={
                each.name: params
                for each in discovery.tools
                if (params := read_header_params(each.declaration.get("inputSchema")))
            },
            methods=frozenset(each.name for each in discovery.other_definitions if each.kind is DefinitionKind.METHOD),
        )
        self._discoveries.move_to_end((tenant, server, viewer))
        self._evict_oldest()
        return discovery

    def _evict_oldest(self) -> None:
        """Drop the oldest discoveries of users; those of the gateway itself stay."""
        user_keys = [key for key in self._discoveries if key[2]]
        for key in user_keys[: max(0, len(user_keys) - MOST_VIEWERS)]:
            del self._discoveries[key]
            self._discovery_locks.pop(key, None)

    async def refresh_discovery(
        self, tenant: str, server: str, credential: Secret | None, seconds: float, *, max_age: float, viewer: str = ""
    ) -> None:
        """Discover the server unless that was done within `max_age` seconds; of concurrent callers only one does."""
        now = self.clock.monotonic()
        lock = self._discovery_locks.setdefault((tenant, server, viewer), asyncio.Lock())
        try:
            async with asyncio.timeout(seconds):
                await lock.acquire()
        except TimeoutError as error:
            raise UpstreamTimeout(
                f"the server {server} did not list its tools within {seconds:.3g} s", nothing_happened=True
            ) from error
        try:
            record, seconds_waited = self._discoveries.get((tenant, server, viewer)), self.clock.monotonic() - now
            if record is None or now - record.discovered_at > max_age:
                await self.discover_server(tenant, server, credential, seconds - seconds_waited, viewer=viewer)
        finally:
            lock.release()

    async def call_tool(
        self, tenant: str, server: str, tool: str, arguments: dict[str, Any], **options: Unpack[RequestOptions]
    ) -> dict[str, Any]:
        """Call a tool and return the server's `CallToolResult` or input requests, or raise the Problem it ended in."""
        record = self._discoveries.get((tenant, server, ""))
        header_params = None if record is None else record.header_params.get(tool)
        headers = {} if header_params is None else build_param_headers(header_params, arguments)
        return await self.send_request(
            tenant, server, CALL_TOOL, {"name": tool, "arguments": arguments}, headers=headers, **options
        )

    async def send_request(
        self,
        tenant: str,
        server: str,
        method: str,
        params: dict[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        **options: Unpack[RequestOptions],
    ) -> dict[str, Any]:
        """Send a request and return the server's result unchanged, or raise the Problem it ended in."""
        transport, credential = self._get_transport(tenant, server), options["credential"]
        request = UpstreamRequest(
            method=method,
            params=params,
            meta=options["meta"],
            headers=headers or {},
            secret=None if credential is None else credential.reveal(),
            on_progress=options.get("report_progress"),
            client_capabilities=options.get("client_capabilities", NO_CAPABILITIES),
            input_round=options.get("input_round"),
        )
        result: dict[str, Any] = await self._run_with_deadline(
            transport.send_request(request), request, server, options["seconds"], tenant
        )
        return result

    async def fetch_challenge(self, tenant: str, server: str, seconds: float) -> str:
        """Fetch the server's `WWW-Authenticate` challenge to an anonymous request; empty if there is none."""
        transport, request = self._get_transport(tenant, server), UpstreamRequest(method="tools/list")

        async def send_anonymously() -> dict[str, Any]:
            await transport.fetch_server_info(None)
            return await transport.send_request(request)

        try:
            await self._run_with_deadline(send_anonymously(), request, server, seconds)
        except SecretsProblem as error:
            return error.challenge
        except (ToolFailed, UpstreamUnavailable):
            return ""
        return ""

    def add_change_listener(self, listener: Callable[[str, str], None]) -> None:
        """Call `listener(tenant, server)` when a server's definitions changed or its connection was lost."""
        self._change_listeners.append(listener)

    def get_tool_digests(self, tenant: str, server: str, viewer: str = "") -> dict[str, str] | None:
        """Return the tools' digests at the last discovery; None if the server was not discovered yet."""
        record = self._discoveries.get((tenant, server, viewer))
        return None if record is None else record.digests

    def get_methods(self, tenant: str, server: str) -> frozenset[str]:
        """Return the methods other than `tools/call` that the server supported at the last discovery."""
        record = self._discoveries.get((tenant, server, ""))
        return frozenset() if record is None else record.methods

    def pin_resources(self, tenant: str, server: str, resources: PinnedResources) -> None:
        """Set the resources and prompts that may be read; a server without pins has none."""
        self._pinned_resources[tenant, server] = resources

    def get_pinned_resources(self, tenant: str, server: str) -> PinnedResources:
        """Return the resources and prompts that may be read."""
        return self._pinned_resources.get((tenant, server), NO_PINNED_RESOURCES)

    def pin_instructions(self, tenant: str, server: str, instructions_digest: str | None) -> None:
        """Set the digest of the accepted instructions (`DiscoveredServer.instructions_digest`); None removes the pin.

        The monitor sets it before the server's tools are called, and when the pin changes. While the server's
        instructions differ, its writes are refused. Without a pin, only tool definitions are compared.
        """
        self._pinned_instructions.pop((tenant, server), None)
        if instructions_digest is not None:
            self._pinned_instructions[tenant, server] = instructions_digest

    def has_pinned_instructions(self, tenant: str, server: str, viewer: str = "") -> bool:
        """Tell whether the instructions match their pin, or there is no pin."""
        record, pin = self._discoveries.get((tenant, server, viewer)), self._pinned_instructions.get((tenant, server))
        return pin is None or (record is not None and record.instructions_digest == pin)

    def list_refused_hosts(self, tenant: str, server: str) -> list[str]:
        """List the hosts that a server's programs wanted to connect to from their sandbox, and may not."""
        transport = self._transports.get((tenant, server))
        return transport.list_refused_hosts() if isinstance(transport, StdioTransport) else []

    def get_discovery_age(self, tenant: str, server: str, viewer: str = "") -> float:
        """Return the seconds since the last discovery; infinite if there was none."""
        record = self._discoveries.get((tenant, server, viewer))
        return float("inf") if record is None else self.clock.monotonic() - record.discovered_at

    async def aclose(self) -> None:
        """Close all connections and stop all server processes, whatever they are doing."""
        self._is_closed = True
        self._change_listeners.clear()
        transports = list(self._transports.values())
        self._transports.clear()
        await asyncio.gather(*(transport.aclose() for transport in transports), return_exceptions=True)
        await self._sandboxes.client.aclose()
        if self._egress is not None:
            await self._egress.aclose()

    async def _fetch_discovery(
        self, transport: UpstreamTransport, secret: str | None, settings: McpServerSettings
    ) -> DiscoveredServer:
        async def fetch_page(method: str, cursor: str | None) -> dict[str, Any]:
            params = {} if cursor is None else {"cursor": cursor}
            return await transport.send_request(UpstreamRequest(method=method, params=params, secret=secret))

        try:
            info = await transport.fetch_server_info(secret)
            discovery = await list_definitions(
                info, fetch_page, resources=bool(settings.resources), prompts=bool(settings.prompts)
            )
        except UpstreamRpcError as error:
            # This is not a tool's error, so the server counts as unavailable.
            raise UpstreamUnavailable(
                f"the server could not list its definitions: {error.message[:200]} ({error.code})",
                nothing_happened=True,
            ) from error
        if info.announces_changes:
            transport.listen_for_changes(secret)
        return discovery

    def get_start_seconds(self, tenant: str, server: McpServerSettings) -> float:
        """Return how long a server may take to start and list its definitions; the first time it may be downloaded."""
        is_new = self.get_discovery_age(tenant, server.name) == float("inf")
        return server.start_seconds + (DOWNLOAD_SECONDS if is_new and downloads_program(server) else 0)

    def get_known_paths(self, tenant: str, server: str, arguments: Any) -> KnownPaths:
        """Return the paths that an error of the server may name: those of the call, and in the server's folders."""
        return KnownPaths(arguments, lambda: list_data_folders(self.get_settings(tenant, server)))

    async def _run_with_deadline(
        self,
        work: Coroutine[Any, Any, Any],
        request: UpstreamRequest,
        server: str,
        seconds: float,
        tenant: str | None = None,
    ) -> Any:
        """Await a request within its deadline; mark errors before it was sent as without effect."""
        try:
            if seconds <= 0:
                work.close()
                raise DeadlineExceeded("the deadline passed before the request was sent, so nothing was done")
            return await self._deadlines.run(work, seconds)
        except TimeoutError as error:
            raise UpstreamTimeout(
                f"the server {server} did not answer within {seconds:.3g} s", nothing_happened=not request.is_sent
            ) from error
        except UpstreamRpcError as rpc_error:
            known_paths = None if tenant is None else self.get_known_paths(tenant, server, request.params)
            raise rpc_error.to_problem(server, is_sent=request.is_sent, known_paths=known_paths) from rpc_error
        except Problem as problem:
            if problem.nothing_happened or request.is_sent:
                raise
            raise problem.replace(nothing_happened=True) from problem.__cause__

    def _get_transport(self, tenant: str, server: str) -> UpstreamTransport:
        transport = self._transports.get((tenant, server))
        if transport is None:
            settings = self.get_settings(tenant, server)
            if self._is_closed:
                raise UpstreamNotAtFault("this gateway is stopping", nothing_happened=True)
            transport = self._transports[tenant, server] = self._create_transport(tenant, settings)
        return transport

    def _create_transport(self, tenant: str, settings: McpServerSettings) -> UpstreamTransport:
        def notify_change() -> None:
            for each in self._change_listeners:
                # Outside the transport's own task, and so that one listener's error does not affect another.
                asyncio.get_running_loop().call_soon(each, tenant, settings.name)

        if settings.url is None:
            return StdioTransport(
                settings, self.clock, key=self._key, on_change=notify_change, sandboxes=self._sandboxes
            )
        if self._egress is None:
            # A separate egress: hosts allowed for other purposes are not allowed for MCP servers.
            hosts = (urlsplit(each.url).hostname for each in self._servers.values() if each.url)
            self._egress = Egress(frozenset(host for host in hosts if host), seconds=_CONNECT_SECONDS)
        return HttpTransport(settings, self._egress, key=self._key, on_change=notify_change)
