"""Define where the gateway listens for gRPC: `[grpc]`."""

import ipaddress
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from deputize.core.settings.base import SettingsSection


class GrpcSettings(SettingsSection):
    """The gRPC interface, which is off unless it has a port. The limits of `[server]` on requests, bodies and times
    hold here too.
    """

    port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="Port of this gateway's gRPC interface; 0 picks a free port. Unset: it is off. gRPC services that "
        'the gateway calls are under `[[services]]`, `kind = "grpc"`.',
    )
    host: str = Field("127.0.0.1", description="Address gRPC listens on.")
    certificate: Path | None = Field(None, description="File with the certificate chain for TLS, in PEM.")
    key: Path | None = Field(None, description="File with the private key of the certificate, in PEM.")
    behind_proxy: bool = Field(
        False,
        description="A reverse proxy in front of this port does TLS. Without it, an address other than loopback needs "
        "`certificate` and `key`.",
    )
    max_connections: int = Field(1024, ge=8, description="Connections at once; more are refused.")
    max_streams: int = Field(100, ge=1, le=10_000, description="RPCs in progress at once on one connection.")

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("set both certificate and key, or neither")
        if self.port is not None and self.certificate is None and not self.behind_proxy and not _is_loopback(self.host):
            raise ValueError(
                f"gRPC on {self.host} would carry tokens without TLS: set certificate and key, or behind_proxy = true "
                "if a reverse proxy does TLS"
            )
        return self


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
