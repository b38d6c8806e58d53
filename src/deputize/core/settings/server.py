"""Define where the gateway listens, and what it accepts: `[server]`."""

from ipaddress import ip_network

from pydantic import Field, field_validator

from deputize.core.settings.base import SettingsSection


class ServerSettings(SettingsSection):
    """Addresses and ports of this gateway, and the limits on connections to it."""

    host: str = Field("127.0.0.1", description="Address the API listens on.")
    port: int = Field(
        7070,
        ge=0,
        le=65_535,
        description="Port of REST, MCP, JSON-RPC and the console; 0 picks a free port. The metrics follow it.",
    )
    metrics_host: str = Field("127.0.0.1", description="Address the metrics listen on; keep it private.")
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="Port of the metrics; 0 picks a free port. Unset: the one after `port`, or the next free one.",
    )
    max_body_bytes: int = Field(1_048_576, ge=1024, description="Largest request body, in bytes.")
    max_depth: int = Field(64, ge=4, le=200, description="Deepest nesting of JSON in a request.")
    max_head_bytes: int = Field(
        65_536, ge=4096, le=1_048_576, description="Largest request line and headers together, in bytes."
    )
    max_request_line_bytes: int = Field(8192, ge=1024, le=65_536, description="Longest URL of a request, in bytes.")
    header_timeout_seconds: float = Field(
        10, gt=0, le=300, description="Time in which a request's headers must arrive, from its first byte."
    )
    body_timeout_seconds: float = Field(
        30, gt=0, le=3600, description="Time in which a request's body must arrive, from the end of its headers."
    )
    idle_timeout_seconds: int = Field(
        30, gt=0, le=3600, description="Time after which a connection without requests is closed."
    )
    drain_seconds: float = Field(
        5,
        ge=0,
        le=3600,
        description="How long `deputize serve` serves on after SIGTERM while `/readyz` says not ready. Set it above "
        "the time in which load balancers notice that.",
    )
    max_connections: int = Field(4096, ge=8, description="Connections to the API at once; more are refused.")
    max_connections_per_address: int = Field(
        256, ge=1, description="Connections at once from one IPv4 address or one IPv6 /64 network."
    )
    reverse_proxies: tuple[str, ...] = Field(
        ("127.0.0.0/8", "::1/128"),
        description="Networks of reverse proxies. Their connections do not count per address, and the address that "
        "they append to `X-Forwarded-For` is the client's.",
    )
    max_requests: int = Field(
        2048, ge=8, description="Requests in progress at once, those that wait included. `/healthz` is always answered."
    )

    max_requests_per_tenant: int = Field(
        1024,
        ge=1,
        description="Requests in progress at once of one tenant, never more than are left for all other tenants.",
    )
    max_requests_per_caller: int = Field(
        512, ge=1, description="Requests in progress at once of one user and all of their agents."
    )

    def get_metrics_port(self) -> int:
        """Return the port of the metrics: unless it is set, the one after the API's."""
        if self.metrics_port is not None:
            return self.metrics_port
        return self.port + 1 if 0 < self.port < 65_535 else 0

    @field_validator("reverse_proxies")
    @classmethod
    def _check_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for each in networks:
            ip_network(each)
        return networks
