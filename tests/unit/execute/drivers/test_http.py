"""Test where the credential of an HTTP service goes, and what the driver refuses to send."""

from typing import Any

import orjson
import pytest

from deputize.catalog.importers.openapi.contracts import build_service
from deputize.catalog.importers.openapi.document import parse_document
from deputize.core.clock import Clock
from deputize.core.contract.http_request import HttpCredential
from deputize.core.contract.tools import HttpTool, Secret, ToolContext
from deputize.core.errors import CredentialMissing, EgressDenied, Problem, SemanticViolation, ToolRequiresSetup
from deputize.execute.drivers.http import HttpDriver, add_credential
from deputize.execute.egress import MAX_URL_LENGTH, Egress, HostResolver
from tests.support.openapi_service import make_document, make_service

pytestmark = pytest.mark.requirement("EXE-1")
URL = "https://orders.example/v1"


def make_tool(url: str = URL, **changes: Any) -> HttpTool:
    contract = build_service(make_service(url=url), parse_document(orjson.dumps(make_document()))).contracts["getOrder"]
    request = contract.handler.request
    assert request is not None
    return HttpTool(contract=contract, service="orders", request=request.model_copy(update=changes))


def make_resolver(hosts: list[str]) -> HostResolver:
    async def resolve(host: str, port: int) -> list[str]:
        hosts.append(host)
        return ["127.0.0.1"]  # which is not public, so the check of addresses ends the request

    return resolve


async def run(tool: HttpTool, arguments: dict[str, Any], hosts: list[str], url: str = URL) -> Problem:
    """Run the tool until the address of its host is checked, and return the problem."""
    egress = Egress(resolver=make_resolver(hosts))
    settings = make_service(url=url)
    services = {("dev", settings.name): (settings, egress)}
    context = ToolContext(
        call_id="1", tenant="dev", user="ana", agent="bot", session=None, key="k", attempt=1, seconds_left=30.0,
        traceparent=None, credential=Secret("s" * 100),
    )  # fmt: skip
    try:
        with pytest.raises(Problem) as caught:
            await HttpDriver(services, Clock()).run(tool, arguments, context, 30.0)
    finally:
        await egress.aclose()
    return caught.value


@pytest.mark.parametrize(
    ("credential", "value", "headers", "query"),
    [
        ({"place": "bearer"}, "abc", {"Authorization": "Bearer abc"}, []),
        ({"place": "basic"}, "ana:pass", {"Authorization": "Basic YW5hOnBhc3M="}, []),
        ({"place": "header", "name": "X-Api-Key"}, "abc", {"X-Api-Key": "abc"}, []),
        ({"place": "query", "name": "api_key"}, "a&b=c", {}, ["api_key=a%26b%3Dc"]),
        ({"place": "cookie", "name": "session"}, "a;b", {"Cookie": "session=a%3Bb"}, []),
    ],
)  # fmt: skip
def test_the_credential_goes_where_the_security_scheme_says(
    credential: dict[str, Any], value: str, headers: dict[str, str], query: list[str]
) -> None:
    made_headers: dict[str, str] = {}
    made_query: list[str] = []
    add_credential(HttpCredential.model_validate(credential), value, made_headers, made_query)
    assert (made_headers, made_query) == (headers, query)


@pytest.mark.parametrize("value", ["", "a\r\nX-Admin: 1", "a\nb", "\x00", "clé", " abc", "abc ", " "])
def test_a_secret_that_is_no_header_is_not_sent(value: str) -> None:
    for credential in (HttpCredential(place="bearer"), HttpCredential(place="header", name="X-Api-Key")):
        headers: dict[str, str] = {}
        with pytest.raises(CredentialMissing) as refused:
            add_credential(credential, value, headers, [])
        assert refused.value.nothing_happened
        assert headers == {}


@pytest.mark.parametrize(
    ("credential", "headers", "query"),
    [
        ({"place": "bearer"}, {"Authorization": "Bearer ours"}, ["api%5Fkey=theirs", "api_key=theirs", "limit=1"]),
        ({"place": "header", "name": "X-Api-Key"}, {"X-Api-Key": "ours"}, None),
        ({"place": "cookie", "name": "session"}, {"Cookie": "session=ours"}, None),
        ({"place": "query", "name": "api_key"}, {}, ["limit=1", "api_key=ours"]),
    ],
)  # fmt: skip
def test_the_credential_replaces_what_arguments_put_in_its_place(
    credential: dict[str, Any], headers: dict[str, str], query: list[str] | None
) -> None:
    made_headers = {"x-api-KEY": "theirs", "AUTHORIZATION": "theirs", "cookie": "session=theirs", "X-Region": "eu"}
    made_query = ["api%5Fkey=theirs", "api_key=theirs", "limit=1"]
    add_credential(HttpCredential.model_validate(credential), "ours", made_headers, made_query)
    for name, value in headers.items():
        assert [text for each, text in made_headers.items() if each.lower() == name.lower()] == [value]
    assert made_headers["X-Region"] == "eu"
    assert query is None or made_query == query


@pytest.mark.asyncio
async def test_a_path_that_leaves_the_host_of_the_settings_is_not_sent() -> None:
    hosts: list[str] = []
    url = "https://orders.example"
    assert isinstance(await run(make_tool(url), {"id": "7"}, hosts, url), EgressDenied)
    assert hosts == ["orders.example"]
    for path in ("@evil.example/", ".evil.example/", "orders/7", ":8080/"):
        refused = await run(make_tool(url, path=path, parameters=()), {}, hosts, url)
        assert isinstance(refused, ToolRequiresSetup)
        assert refused.nothing_happened
    assert hosts == ["orders.example"]


@pytest.mark.asyncio
@pytest.mark.parametrize("place", ["bearer", "query"])
async def test_the_whole_url_is_limited(place: str) -> None:
    """The base URL, the separators and a credential in the query count."""
    credential = HttpCredential.model_validate({"place": place, "name": "key" if place == "query" else None})
    added = len("&key=") + 100 if place == "query" else 0
    longest = MAX_URL_LENGTH - len(URL) - len("/orders/7?fields=a&fields=") - added
    tool, hosts = make_tool(credential=credential), list[str]()
    assert isinstance(await run(tool, {"id": "7", "fields": ["a", "x" * longest]}, hosts), EgressDenied)
    assert hosts == ["orders.example"], "the longest URL is sent"
    refused = await run(tool, {"id": "7", "fields": ["a", "x" * (longest + 1)]}, hosts)
    assert isinstance(refused, SemanticViolation)
    assert "shorten" in refused.message
    assert refused.nothing_happened
    assert hosts == ["orders.example"]
