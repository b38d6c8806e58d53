"""The places that read documents of services and call them, the commands of the operator, and the clients of others."""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from deputize.catalog.importers.openapi.contracts import build_service
from deputize.catalog.importers.openapi.document import OpenApiDocument, parse_document
from deputize.catalog.importers.state_readers import read_etag
from deputize.catalog.schemas import compile_schema
from deputize.composition.runtime import build_http_driver
from deputize.core.clock import Clock
from deputize.core.contract.tools import ToolContext
from deputize.core.settings import (
    IdentitySettings,
    IssuerSettings,
    McpServerSettings,
    PolicySettings,
    ServiceSettings,
    Settings,
    TelemetrySettings,
    VaultSettings,
)
from deputize.evidence.span_export import open_tracer
from deputize.execute.drivers.grpc_channels import ServiceChannel
from deputize.execute.upstreams.oauth.metadata import discover_auth_server
from deputize.execute.upstreams.oauth.www_authenticate import Challenge
from deputize.govern.vault.openbao import OpenBaoVault
from deputize.interfaces.cli.diagnostics.checks import _check_issuers
from deputize.interfaces.cli.diagnostics.policy_checks import _check_decision_point
from deputize.interfaces.cli.diagnostics.upstream_checks import check_upstreams
from deputize.interfaces.cli.local.service_import import ImportOptions, plan_import, read_source
from deputize.lifecycle.credentials.wiring import build_sign_in_egress
from proofs.ssrf.browser_pages import list_browser_places
from proofs.ssrf.hostile_documents import (
    build_referring_document,
    build_server_document,
    build_signing_in_document,
)
from proofs.ssrf.places import Place
from proofs.ssrf.sites import ATTACKER_URL, OPERATOR_URL, Sites
from tests.support.openapi_service import make_document

_SECONDS = 10.0
_TENANT = "dev"
_CONTEXT = ToolContext(
    call_id="1", tenant=_TENANT, user="ana", agent="bot", session=None, key="k", attempt=1, seconds_left=30.0,
    traceparent=None, credential=None,
)  # fmt: skip
_NO_OPTIONS = ImportOptions(name="orders", url=None)


@cache
def _parse_orders() -> OpenApiDocument:
    return parse_document(orjson.dumps(make_document(security=[])))


async def call_service(
    service: ServiceSettings,
    document: OpenApiDocument,
    operation: str,
    arguments: dict[str, Any],
    context: ToolContext = _CONTEXT,
) -> None:
    """Call an operation of a service, as a gateway with these settings does."""
    contract = build_service(service, document).contracts[operation]
    async with AsyncExitStack() as stack:
        driver = build_http_driver(Settings(services=(service,)), Clock(), stack)
        await driver.run(driver.find_tool(contract), arguments, context, _SECONDS)


async def call_service_at(url: str) -> None:
    """Call a service at the URL in the settings."""
    fields = {"name": "orders", "document": "orders.json", "sha256": "0" * 64, "url": url, "tenant": _TENANT}
    await call_service(ServiceSettings.model_validate(fields), _parse_orders(), "getOrder", {"id": "7"})


async def call_further_url(url: str) -> None:
    """Call a service at the second of its URLs in the settings."""
    fields = {"name": "orders", "document": "orders.json", "sha256": "0" * 64, "url": "https://first.operator.test",
              "further_urls": [url], "tenant": _TENANT}  # fmt: skip
    service = ServiceSettings.model_validate(fields)
    await call_service(service, _parse_orders(), "getOrder", {"id": "7"}, replace(_CONTEXT, endpoint=1))


async def connect_grpc_service(url: str) -> None:
    """Connect to a gRPC service at the URL in the settings."""
    fields = {"name": "orders", "document": "orders.json", "sha256": "0" * 64, "url": url, "tenant": _TENANT}
    channel = ServiceChannel(ServiceSettings.model_validate(fields))
    try:
        await channel.open(_SECONDS)
    finally:
        await channel.aclose()


async def call_service_with(text: str) -> None:
    """Call a service with a hostile text in its query and a header, then also in its path."""
    fields = {"name": "orders", "document": "orders.json", "sha256": "0" * 64, "url": OPERATOR_URL, "tenant": _TENANT}
    service, hostile = ServiceSettings.model_validate(fields), {"fields": [text], "X-Region": text}
    for arguments in ({**hostile, "id": "7"}, {"id": text}):
        await call_service(service, _parse_orders(), "getOrder", arguments)


async def fetch_document(url: str) -> None:
    """Fetch the document of a service that a person imports, and read it."""
    content = await asyncio.to_thread(read_source, url)
    await asyncio.to_thread(plan_import, url, content, _NO_OPTIONS)


class DocumentPlaces:
    """What the documents of services name."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._numbers = count()

    async def follow_server(self, url: str) -> None:
        """Import a document whose server is at a URL, and call an operation there."""
        content = build_server_document(url, next(self._numbers))
        source = self._sites.publish(ATTACKER_URL, lambda _: content)
        plan = await asyncio.to_thread(plan_import, source, await asyncio.to_thread(read_source, source), _NO_OPTIONS)
        service = plan.service.model_copy(update={"tenant": _TENANT})
        await call_service(service, parse_document(plan.document), "read", {})

    async def follow_issuer(self, url: str) -> None:
        """Import a document that names an issuer, and discover where people who link their account sign in."""
        server = self._sites.publish(ATTACKER_URL, lambda own: {"resource": own, "authorization_servers": [url]})
        content = build_signing_in_document(server, url)
        plan = await asyncio.to_thread(plan_import, "openapi.json", content, _NO_OPTIONS)
        assert plan.service.issuer == url
        egress = build_sign_in_egress(Settings(services=(plan.service,)))
        try:
            await discover_auth_server(egress.request, server, Challenge(), issuer=plan.service.issuer)
        finally:
            await egress.aclose()

    async def follow_reference(self, url: str) -> None:
        """Import a document with a reference to a URL."""
        content = build_referring_document(url, next(self._numbers))
        source = self._sites.publish(ATTACKER_URL, lambda _: content)
        await fetch_document(source)


async def fetch_reference(url: str) -> None:
    """Import a document with a reference that the person allowed."""
    content = build_referring_document(url, 2)
    options = ImportOptions(name="orders", url=None, allow_refs=(url,))
    await asyncio.to_thread(plan_import, f"{ATTACKER_URL}/openapi.json", content, options)


async def compile_references(url: str) -> None:
    """Compile schemas that refer to a URL, as the definitions of an MCP server's tools can."""
    for schema in (
        {"$ref": url},
        {"$schema": url},
        {"$dynamicRef": url},
        {"$id": url, "$ref": "#/x"},
        {"allOf": [{"$ref": url}]},
    ):
        try:
            validator = await asyncio.to_thread(compile_schema, schema)
            validator.is_valid({})
        except ValueError:
            continue


async def read_state(text: str) -> None:
    """Read the ETag of a resource whose name an agent chose."""
    await asyncio.to_thread(read_etag(f"{OPERATOR_URL}/items/{{item}}"), item=text)


async def diagnose_issuer(url: str) -> None:
    """Check an issuer with `deputize doctor`."""
    issuer = IssuerSettings(issuer="https://login.operator.test", audience="gateway", tenant="acme", jwks_url=url)
    async for _ in _check_issuers(Settings(identity=IdentitySettings(issuers=(issuer,))), False):
        pass


async def diagnose_decision_point(url: str) -> None:
    """Check the decision point with `deputize doctor`."""
    await _check_decision_point(Settings(policy=PolicySettings(engine="authzen", authzen_url=url)))


async def diagnose_server(url: str) -> None:
    """Check an MCP server with `deputize doctor`."""
    await check_upstreams(Settings(servers=(McpServerSettings(name="inner", url=url),)))


async def read_vault(url: str) -> None:
    """Read a secret from a vault."""
    with tempfile.NamedTemporaryFile() as token:
        token.write(b"token")
        token.flush()
        vault = OpenBaoVault(VaultSettings(kind="openbao", address=url, token_file=Path(token.name)), Clock())
        try:
            await vault.fetch("acme", "secret", seconds=_SECONDS)
        finally:
            vault.close()


async def export_span(url: str) -> None:
    """Export a span to a collector."""

    async def export() -> None:
        async with AsyncExitStack() as stack:
            tracer = open_tracer(TelemetrySettings(otlp_endpoint=url), "1", stack)
            assert tracer is not None
            tracer.start_span("call").end()

    # The exporter blocks when it ends.
    await asyncio.to_thread(asyncio.run, export())


def list_service_places(sites: Sites) -> list[Place]:
    """List the places that read documents, the commands, the browser, and the clients of others."""
    documents, cli, credentials_module = DocumentPlaces(sites), "interfaces/cli", "lifecycle/credentials/wiring.py"
    driver_code = ("composition/runtime.py Egress", "execute/drivers/http.py egress.exchange")
    import_code = (f"{cli}/local/service_import.py Egress", f"{cli}/local/service_import.py egress.get")
    doctor_code = (f"{cli}/diagnostics/checks.py Egress", f"{cli}/diagnostics/checks.py egress.get")
    return [
        Place(name="service", covers=driver_code, attempt=call_service_at),
        Place(name="further URL of a service", covers=driver_code, attempt=call_further_url),
        Place(name="gRPC service", covers=tuple(
                  f"execute/drivers/grpc_channels.py {use}"
                  for use in ("grpc", "insecure_channel", "secure_channel", "resolve_allowed_addresses")
              ), attempt=connect_grpc_service, has_paths=False),
        Place(name="service arguments", covers=driver_code, attempt=call_service_with, is_named=False,
              is_connecting=False),
        Place(name="service document", covers=import_code, attempt=fetch_document),
        Place(name="document servers", covers=(*import_code, *driver_code), attempt=documents.follow_server,
              is_named=False),
        Place(name="document issuer", covers=(f"{credentials_module} Egress", f"{credentials_module} egress.request"),
              attempt=documents.follow_issuer, is_named=False),
        Place(name="document references", covers=import_code, attempt=documents.follow_reference, is_named=False,
              is_connecting=False),
        Place(name="allowed references", covers=(f"{cli}/local/referenced_documents.py Egress",
                                                 f"{cli}/local/referenced_documents.py egress.request"),
              attempt=fetch_reference),
        Place(name="schema references", covers=("catalog/schemas.py jsonschema_rs",), attempt=compile_references,
              is_named=False, is_connecting=False),
        Place(name="state of a resource", covers=("catalog/importers/state_readers.py http.client",),
              attempt=read_state, is_named=False, is_connecting=False),
        Place(name="doctor: issuer", covers=doctor_code, attempt=diagnose_issuer),
        Place(name="doctor: decision point", covers=(f"{cli}/diagnostics/policy_checks.py open_connection",
                                                 f"{cli}/diagnostics/policy_checks.py resolve_allowed_addresses"),
              attempt=diagnose_decision_point),
        Place(name="doctor: server", covers=(f"{cli}/diagnostics/upstream_checks.py open_connection",
                                             f"{cli}/diagnostics/upstream_checks.py resolve_allowed_addresses"),
              attempt=diagnose_server),
        Place(name="vault", covers=("govern/vault/openbao.py hvac", "govern/vault/openbao.py requests"),
              attempt=read_vault, paths_only=True),
        Place(name="span collector", covers=("evidence/span_export.py opentelemetry",), attempt=export_span,
              paths_only=True),
        *list_browser_places(sites),
    ]  # fmt: skip
