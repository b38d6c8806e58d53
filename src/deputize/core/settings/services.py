"""Define the HTTP and gRPC services, and the commands, that this gateway serves: `[[services]]`."""

import ipaddress
import re
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from deputize.core.contract.response_fields import ResponseField
from deputize.core.http_urls import is_http_url
from deputize.core.settings.base import SettingsSection
from deputize.core.settings.servers import (
    BreakerSettings,
    Facts,
    FreshnessByTool,
    RecordArguments,
    RetryByTool,
    ServiceLimitSettings,
    Sha256,
    Target,
)

# A key of metadata that is text, and none of gRPC's own.
_METADATA_KEY: Final = re.compile(r"(?!grpc-)[a-z0-9_.-]{1,64}(?<!-bin)")
_HEADER: Final = re.compile(r"(?i:(?!host$|content-|transfer-encoding$|connection$))[!#$%&'*+.^_`|~0-9A-Za-z-]{1,120}")
# Networks that a credential may cross without TLS: this machine and private networks.
_PRIVATE_NETWORKS: Final = tuple(
    ipaddress.ip_network(each)
    for each in ("127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)


class ServiceSettings(SettingsSection):
    """An HTTP service that an OpenAPI document or a manifest of HTTP tools describes, a gRPC service with a descriptor
    set, or commands that run in sandboxes. `deputize import` writes this section. The document is a file of the
    project, pinned by its digest; the gateway never fetches it. Operations other than GET, HEAD and OPTIONS, and gRPC
    methods other than those with `idempotency_level = NO_SIDE_EFFECTS`, count as destructive until you list them in
    `reads` or `writes`; a manifest declares effects itself.
    """

    name: str = Field(
        pattern=r"^[a-z](?:_?[a-z0-9])*$",
        max_length=48,
        description="Small letters, digits and single underscores, a letter first: the name of the service, and the "
        "namespace of its tools.",
    )
    kind: Literal["openapi", "manifest", "grpc", "commands"] = Field(
        "openapi",
        description="What describes it: an OpenAPI document, a manifest of HTTP tools, a descriptor set of gRPC "
        "services, or a manifest of commands.",
    )
    tenant: str | None = Field(None, description="The tenant it serves. Default: that of `[tools]`.")
    document: Path = Field(description="The document, relative to the project. An OpenAPI document must be JSON.")
    sha256: Sha256 = Field(description="SHA-256 of the document. A document with another digest is not used.")
    url: str = Field(
        "",
        description="URL that the paths of the document are added to. No other host is ever called. With a credential "
        "it needs https, unless it has localhost or a private IP address. Commands have none.",
    )
    further_urls: tuple[str, ...] = Field(
        (),
        max_length=2,
        description="URLs of the same service at other hosts, tried in this order while the first one is paused or "
        "cannot be connected to. What may have reached one is not sent to another. Writes that are safe to repeat go "
        "to the first only, because another may not recognize a repetition.",
    )
    public_only: bool = Field(
        False,
        description="Call the host only at public addresses, over https. `deputize services import` sets it if the URL "
        "comes from the document, which must not lead into your own network.",
    )
    private_hosts: tuple[Target, ...] = Field(
        (),
        max_length=100,
        description="Of `commands`: hosts of their `network` that may be in a private network or on this machine, as "
        'in `"db.internal:443"`. The others are reached at public addresses alone.',
    )
    operations: tuple[str, ...] = Field(
        ("*",), description="Operations to serve, as globs over their ids; without an id, as in `GET /pets`."
    )
    excluded_operations: tuple[str, ...] = Field((), description="Operations not to serve, as globs.")
    credential: Literal["none", "vault", "delegated", "link"] = Field(
        "none",
        description="Credential of calls: none, the tenant's `secret` (`vault`), a token minted for `audience` "
        "(`delegated`), or the user's linked account (`link`).",
    )
    secret: str | None = Field(
        None,
        description="Name of the tenant's secret, for `vault`. For HTTP basic it holds `user:password`. With "
        "`client_id`: name of the client's secret or key.",
    )
    further_secrets: dict[str, str] = Field(
        {},
        max_length=3,
        description="Names of further secrets of the tenant that are sent beside `secret`, by their security schemes, "
        'for operations that need several keys at once: `further_secrets.appId = "orders-app"`.',
    )
    audience: str | None = Field(None, description="Audience of minted tokens, for `delegated`.")
    issuer: str | None = Field(
        None, description="Authorization server, for `link`. Default: the one that the service names."
    )
    client_id: str | None = Field(
        None, description="OAuth client of this gateway at `issuer`. Unset, it registers itself, for `link`."
    )
    link_scopes: tuple[str, ...] = Field(
        (), description="Scopes that people who link their account are asked for, for `link`."
    )
    security: str | None = Field(
        None,
        description="The security scheme of the document that says where the credential goes. For a document without "
        "schemes: `bearer` or `basic`. For a manifest: `bearer`, `basic`, or the name of a header. For gRPC: `bearer`, "
        "or the key of the metadata.",
    )
    reads: tuple[str, ...] = Field((), description="Operations that change nothing, as globs.")
    writes: tuple[str, ...] = Field((), description="Operations whose changes can be undone, as globs.")
    destructive: tuple[str, ...] = Field(
        (), description="Operations that destroy data although they use GET, HEAD or OPTIONS, as globs."
    )
    repeatable: tuple[str, ...] = Field(
        (), description="Operations that are safe to repeat because the service recognizes equal calls, as globs."
    )
    slow: tuple[str, ...] = Field((), description="Operations that may take minutes, as globs.")
    response_fields: dict[str, tuple[ResponseField, ...]] = Field(
        {},
        description="Fields of responses that are kept, by globs of operations: JSON pointers into the body, with `*` "
        'for each item of a list, as in `response_fields.listPets = ["/items/*/id", "/items/*/name"]`. The rest never '
        "reaches callers, records and caches. An operation whose response does not have such a field is not served.",
    )
    facts: Facts = Field({})
    record_arguments: RecordArguments = False
    scopes: tuple[str, ...] = Field((), description="Scopes that callers of its tools need.")
    service_limits: ServiceLimitSettings = Field(
        ServiceLimitSettings(), description="How many of its calls are made at once, and how long others wait."
    )
    breaker: BreakerSettings = Field(
        BreakerSettings(), description="When calls pause because it fails, and when they go on."
    )
    retry: RetryByTool = Field({})
    freshness: FreshnessByTool = Field({})
    max_response_bytes: int = Field(
        1_048_576, ge=1_024, le=4_194_304, description="Largest response. A larger one fails the call."
    )

    @property
    def urls(self) -> tuple[str, ...]:
        """The URL, and the further ones."""
        return (self.url, *self.further_urls) if self.url else ()

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that requests go to, as in `urls`."""
        return tuple(urlsplit(url).hostname or "" for url in self.urls)

    @property
    def further_circuits(self) -> tuple[str, ...]:
        """The names of the circuits of the further URLs; that of the first is the service's name."""
        return tuple(f"{self.name} at {urlsplit(url).netloc}" for url in self.further_urls)

    @model_validator(mode="after")
    def _check_url(self) -> Self:
        if self.kind == "commands":
            return self
        if not self.url:
            raise ValueError("the service needs the URL that it is at: set url")
        for url in self.urls:
            parts = urlsplit(url) if is_http_url(url) else None
            if parts is None or parts.query or parts.fragment:
                raise ValueError(
                    "url and further_urls must be http or https URLs without user name, password, query and fragment"
                )
            if self.kind == "grpc" and parts.path not in ("", "/"):
                raise ValueError("the url of a gRPC service has no path: its methods have their own")
            if self.public_only and parts.scheme != "https":
                raise ValueError("public_only needs https URLs: change url and further_urls, or remove public_only")
        for field in ("response_fields", "further_urls"):
            if self.kind == "grpc" and getattr(self, field):
                raise ValueError(f"{field} is for HTTP services: remove it")
        if len({urlsplit(url).netloc.lower() for url in self.urls}) < len(self.urls):
            raise ValueError("each of further_urls must have a host or port of its own")
        return self

    @model_validator(mode="after")
    def _check_commands(self) -> Self:
        fields = ("url", "further_urls", "public_only", "security", "response_fields")
        given_field = next((field for field in fields if getattr(self, field)), None)
        if self.kind == "commands" and (given_field is not None or self.credential != "none"):
            raise ValueError(f"{given_field or 'credential'} is for services: commands have none, so remove it")
        if self.kind != "commands" and self.private_hosts:
            raise ValueError("private_hosts is for commands: remove it, and see public_only for a service with a url")
        return self

    @model_validator(mode="after")
    def _check_manifest(self) -> Self:
        fields = ("reads", "writes", "destructive", "repeatable", "slow")
        given_field = next((field for field in fields if getattr(self, field)), None)
        if self.kind in ("manifest", "commands") and given_field is not None:
            raise ValueError(
                f"{given_field} is for imported documents: a manifest declares effects, idempotency and timeout itself"
            )
        return self

    @model_validator(mode="after")
    def _check_credential(self) -> Self:
        if self.credential == "vault" and self.secret is None:
            raise ValueError('credential = "vault" needs the name of a secret: set secret')
        if self.credential == "delegated" and self.audience is None:
            raise ValueError('credential = "delegated" needs the audience of its tokens: set audience')
        if self.further_secrets and (self.kind != "openapi" or self.credential != "vault"):
            raise ValueError('further_secrets are for OpenAPI documents with credential = "vault"')
        if self.security in self.further_secrets:
            raise ValueError("the scheme in security has secret: remove it from further_secrets")
        if self.credential == "link" and self.kind == "grpc":
            raise ValueError('credential = "link" is for HTTP services: use "vault" or "delegated"')
        if self.kind == "grpc" and self.security is not None and not _METADATA_KEY.fullmatch(self.security):
            raise ValueError("security of a gRPC service must be bearer, or a metadata key of lower case letters")
        if self.kind == "manifest" and self.security is not None and not _HEADER.fullmatch(self.security):
            raise ValueError("security of a manifest must be bearer, basic, or the name of a header")
        if self.credential != "none" and self.security is None:
            raise ValueError("a credential needs the security scheme that says where it goes: set security")
        for url, host in zip(self.urls, self.hosts, strict=True):
            if self.credential != "none" and urlsplit(url).scheme != "https" and not _is_private_host(host):
                raise ValueError(
                    "a credential is sent over https only: set url to the service's https URL, or to http with "
                    "localhost or a private IP address, and further_urls likewise"
                )
        return self

    @model_validator(mode="after")
    def _check_link(self) -> Self:
        if self.credential != "link" and (self.issuer or self.client_id or self.link_scopes):
            raise ValueError('issuer, client_id and link_scopes need credential = "link"')
        if self.credential == "link" and self.secret is not None and self.client_id is None:
            raise ValueError("secret belongs to an OAuth client: set client_id too")
        if self.client_id is not None and self.issuer is None:
            raise ValueError("client_id belongs to one authorization server: set issuer too")
        return self


def _is_private_host(host: str) -> bool:
    """Tell whether a host is this machine or a private address. Other names may resolve to public addresses."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in _PRIVATE_NETWORKS)
