"""The fuzzer of the MCP interface finds nothing at a real one, and sees what would be wrong."""

import orjson
import pytest

from proofs.fuzz.mcp_fuzzer import find_answer_fault, fuzz_mcp
from proofs.fuzz.runner import Case
from proofs.kit.http_client import HttpResponse
from tests.integration.conftest import HttpGateway

pytestmark = pytest.mark.nightly


async def test_whatever_is_sent_is_answered_as_the_protocol_says(gateway: HttpGateway) -> None:
    found = await fuzz_mcp(gateway.url, gateway.token(), cases=120, seed=3)
    assert (found.samples, found.cases >= 120) == ([], True)


@pytest.mark.parametrize(
    ("status", "told", "wrong"),
    [
        (500, {}, "server error"),
        (418, {}, "undocumented status 418"),
        (200, [], "not a JSON-RPC reply"),
        (200, {"jsonrpc": "2.0", "id": 1}, "not exactly one of result and error"),
        (200, {"jsonrpc": "2.0", "id": 1, "error": {"code": -32603, "message": "x"}}, "internal"),
        (200, {"jsonrpc": "2.0", "id": 2, "result": {}}, "a result for another request"),
        (200, {"jsonrpc": "2.0", "id": 1, "result": {}}, "a result of a call without content"),
        (200, {"jsonrpc": "2.0", "id": 1, "result": {"content": [], "isError": False}}, None),
    ],
)
def test_what_is_wrong_with_an_answer_is_seen(status: int, told: object, wrong: str | None) -> None:
    case = Case(path="/mcp", request={"id": 1, "method": "tools/call"})
    assert find_answer_fault(case, HttpResponse(status=status, headers={}, body=orjson.dumps(told))) == wrong
