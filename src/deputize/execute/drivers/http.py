"""Call operations of HTTP services, as their contracts say and only at the URLs in the settings.

The contract holds the whole request: method, path, and where each argument and the credential go. The settings hold
the URLs. Both must agree on the first URL and the credential, so that an old contract or old settings cannot send a
secret to another host. Redirects are not followed.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract, MutationClass
from deputize.core.contract.http_request import HttpCredential
from deputize.core.contract.tools import HttpTool, ToolContext
from deputize.core.errors import (
    CredentialMissing,
    OutcomeUnknown,
    ResourceLimitExceeded,
    SemanticViolation,
    ToolRequiresSetup,
)
from deputize.core.outcome import Result
from deputize.core.settings import ServiceSettings
from deputize.execute.drivers.http_answers import build_result, keep_response_fields
from deputize.execute.drivers.http_encoding import encode_request
from deputize.execute.drivers.http_pagination import add_pagination, read_pagination
from deputize.execute.drivers.service_settings import require_service
from deputize.execute.egress import MAX_URL_LENGTH, Egress

_ACCEPT: Final = "application/json, */*;q=0.5"
# The trace that the call belongs to (W3C), and what is left of its deadline, in milliseconds.
_TRACEPARENT: Final = "traceparent"
_DEADLINE: Final = "Deputize-Deadline-Ms"


class HttpDriver:
    """The driver for operations of HTTP services. `services` are by tenant and name, each with its own egress."""

    def __init__(self, services: Mapping[tuple[str, str], tuple[ServiceSettings, Egress]], clock: Clock) -> None:
        self._services = services
        self._clock = clock

    def find_tool(self, contract: Contract) -> HttpTool:
        """Return the operation that a contract names."""
        request = contract.handler.request
        if request is None:
            raise ToolRequiresSetup(
                f"{contract.full_name} {contract.version} does not say which request it is", nothing_happened=True
            )
        return HttpTool(
            contract=contract,
            service=contract.handler.target.partition("/")[0],
            request=request,
            pagination=read_pagination(contract),
        )

    async def run(
        self, tool: HttpTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> dict[str, Any] | Result:
        """Send the request and return its result, with what is known of further pages, or raise the Problem."""
        assert context is not None, "a call of a service's operation always has a context"
        ids = None if tool.contract.native_ids is None else tool.contract.native_ids.openapi
        settings, egress = require_service(
            self._services,
            tool.contract,
            tenant=context.tenant,
            name=tool.service,
            server_url=None if ids is None else ids.server_url,
            endpoint=context.endpoint,
        )
        parts, request = encode_request(tool.request, arguments), tool.request
        headers, query = {"Accept": _ACCEPT, **parts.headers}, list(parts.query)
        if context.traceparent is not None:
            set_header(headers, _TRACEPARENT, context.traceparent)
        set_header(headers, _DEADLINE, str(int(seconds * 1000)))
        if request.idempotency_header is not None:
            set_header(headers, request.idempotency_header, context.key)
        if request.credential is not None:
            if context.credential is None:
                raise CredentialMissing(f"{tool.contract.full_name} was called without its credential")
            add_credential(request.credential, context.credential.reveal(), headers, query)
            for place, secret in zip(request.further_credentials or (), context.credential.further, strict=True):
                add_credential(place, secret.reveal(), headers, query)
        url = _build_url(tool, settings.urls[context.endpoint], parts.path, query)
        try:
            answer = await egress.exchange(
                request.method,
                url,
                body=parts.body,
                headers=headers,
                seconds=seconds,
                max_bytes=settings.max_response_bytes,
            )
        except ResourceLimitExceeded as limit:
            if tool.contract.mutation_class is MutationClass.READ:
                raise
            # The response was not read to its end, so it may be a success.
            raise OutcomeUnknown(f"{limit.message}; it is unknown whether the service acted") from limit
        has_credential = request.credential is not None
        result = build_result(tool, answer, arguments, self._clock.now(), had_credential=has_credential)
        kept_result = keep_response_fields(tool, result)
        # What is said about further pages may be in fields that are not kept.
        return add_pagination(tool, arguments, kept_result, result.get("body"), answer.headers.get("link", ""))


def _build_url(tool: HttpTool, service_url: str, path: str, query: Sequence[str]) -> str:
    """Build the URL of a request, which is at the service's host and not too long."""
    url = service_url.rstrip("/") + path + ("?" + "&".join(query) if query else "")
    if not path.startswith("/") or urlsplit(url).netloc != urlsplit(service_url).netloc:
        raise ToolRequiresSetup(
            f"the path of {tool.contract.full_name} {tool.contract.version} does not begin with a slash or changes the "
            "host, so its request would not go to the service",
            details={"service": tool.service},
            advice="Ask the operator to import the service's document again: deputize services import.",
            nothing_happened=True,
        )
    if len(url) > MAX_URL_LENGTH:
        raise SemanticViolation(f"the arguments make a URL longer than {MAX_URL_LENGTH:,} characters: shorten them")
    return url


def set_header(headers: dict[str, str], name: str, value: str) -> None:
    """Set a header in place of every one whose name differs only in case."""
    for other in [each for each in headers if each.lower() == name.lower()]:
        del headers[other]
    headers[name] = value


def add_credential(credential: HttpCredential, value: str, headers: dict[str, str], query: list[str]) -> None:
    """Put the credential where the service's security scheme says, in place of what an argument put there."""
    name = credential.name or ""
    if credential.place == "query":
        query[:] = [part for part in query if unquote(part.partition("=")[0]) != name]
        query.append(f"{quote(name, safe='')}={quote(value, safe='')}")
    elif credential.place == "basic":
        set_header(headers, "Authorization", f"Basic {base64.b64encode(value.encode()).decode()}")
    elif not value.isascii() or not value.isprintable() or not value or value != value.strip():
        raise CredentialMissing(
            "the credential cannot be sent in a header, because it is empty, has other characters than visible ASCII, "
            "or begins or ends with a space",
            advice="Ask the operator to store the secret again: deputize secrets set.",
            nothing_happened=True,
        )
    elif credential.place == "bearer":
        set_header(headers, "Authorization", f"Bearer {value}")
    elif credential.place == "cookie":
        set_header(headers, "Cookie", f"{name}={quote(value, safe='')}")
    else:
        set_header(headers, name, value)
