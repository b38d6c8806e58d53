"""Send the corpus through every interface of a gateway."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson

from deputize.core.contract.names import to_outward_name
from deputize.core.mcp.constants import CLIENT_CAPABILITIES, MODERN_VERSION, PROTOCOL_VERSION_KEY
from deputize.interfaces.console.cookies import SESSION
from proofs.stalls import corpus
from proofs.stalls.hostile_peer import KINDS
from proofs.stalls.testbed import POLICIES, Testbed

RESULTS_SERVER, PATTERNS_SERVER = "results", "patterns"
FRAMING = "framing: "
# The old matcher takes seconds for this one, and never ends with the others.
SHORT_NAME = "a name of 23 characters"
_HOSTILE_TENANT = "acme"
_FETCH_TOOL = {"name": "fetch", "description": "Fetch what is stored.", "inputSchema": {"type": "object"}}
_TREE = {"type": ["object", "integer"], "properties": {"left": {"anyOf": [{"$ref": "#/$defs/tree"}] * 2}}}
_FRACTIONS = {"type": "array", "items": {"type": "number", "enum": [each * 1e-300 for each in range(1, 200)]}}
_PATTERNS = {"type": "object", "$defs": {"tree": _TREE},
             "properties": {"tree": {"$ref": "#/$defs/tree"}, "fractions": _FRACTIONS},
             "patternProperties": {"^(a+)+$": {"type": "string"}, "^(b|c)*$": {"type": "integer"}}}  # fmt: skip
_SCAN_TOOL = {
    "name": "scan", "description": "List everything that was found.", "inputSchema": {"type": "object"},
    "outputSchema": _PATTERNS,
}  # fmt: skip


def list_definition_servers() -> dict[str, str]:
    """Name a server for each hostile list of tools."""
    return {f"defs{number}": name for number, name in enumerate(corpus.build_definitions())}


async def send_arguments(testbed: Testbed) -> None:
    documents = {**corpus.build_arguments(), **corpus.build_small_arguments()}
    for name, document in documents.items():
        for tool, field in (("stalls.echo", b"value"), ("stalls.greet", b"name")):
            call = b'{"tool":"' + tool.encode() + b'","arguments":{"' + field + b'":' + document + b"}}"
            await testbed.measure(f"{name}, {tool} over REST", "POST", "/v1/calls", call)
        rpc = b'{"jsonrpc":"2.0","id":1,"method":"calls.create","params":' + call + b"}"
        await testbed.measure(f"{name} over JSON-RPC", "POST", "/rpc", rpc)
        await _call_over_mcp(testbed, f"{name} over MCP", "stalls.echo", b'{"value":' + document + b"}")
        await testbed.measure(f"{name} as policies", "POST", "/v1/policies/check", b'{"files":' + document + b"}")
        await testbed.measure(f"{name} as a manifest", "POST", "/v1/tools", b'{"name":' + document + b"}")
        form = {"content-type": "application/x-www-form-urlencoded"}
        await testbed.measure(f"{name} as a form", "POST", "/oauth/token", b"grant_type=" + document, headers=form)
    for name, document in corpus.build_expressions().items():
        call = b'{"tool":"stalls.compute","arguments":{"expression":' + document + b"}}"
        await testbed.measure(f"expression {name}", "POST", "/v1/calls", call)
    spelled = {"tool": "stalls.spell", "arguments": {"name": "a" * 90_000}}
    await testbed.measure_json("costly predicate", "POST", "/v1/calls", spelled)
    for name, schema in corpus.build_schemas().items():
        value = {"input": {"schema": schema}, "output": {"schema": schema}}
        await testbed.measure_json(f"negotiation: {name}", "POST", "/v1/tools/stalls.greet/negotiation", value)


async def warm_up(testbed: Testbed) -> None:
    """Send ordinary requests, which load what later ones share, and introduce the servers whose results follow."""
    tools = {RESULTS_SERVER: _FETCH_TOOL, PATTERNS_SERVER: _SCAN_TOOL}
    for server, tool in tools.items():
        await testbed.declare(server, "tools", orjson.dumps([tool]))
        await testbed.measure(f"{server}: tools", "POST", f"/v1/servers/{server}/test")
    await testbed.measure("peer_mcp: tools", "POST", "/v1/servers/peer_mcp/test")
    for _ in range(3):
        await testbed.measure_json("warm up", "POST", "/v1/calls", {"tool": "stalls.echo", "arguments": {"value": 1}})
        await _call_over_mcp(testbed, "warm up over MCP", f"{RESULTS_SERVER}.fetch", b"{}")
        await _call_over_mcp(testbed, "warm up over MCP", f"{PATTERNS_SERVER}.scan", b"{}")
        await testbed.measure("warm up", "GET", "/v1/tools")
    testbed.take_measurements()


async def send_results(testbed: Testbed) -> None:
    for name, result in corpus.build_results().items():
        await testbed.declare(RESULTS_SERVER, "result", result)
        await _call_over_both(testbed, f"result: {name}", f"{RESULTS_SERVER}.fetch")
    for name, stream in corpus.build_streams().items():
        await testbed.declare(RESULTS_SERVER, "stream", stream)
        await _call_over_both(testbed, f"stream: {name}", f"{RESULTS_SERVER}.fetch")
    await send_pattern_results(testbed)


async def send_pattern_results(testbed: Testbed, only: str | None = None) -> None:
    for name, result in build_pattern_results().items():
        if only is not None and name != only:
            continue
        await testbed.declare(PATTERNS_SERVER, "result", result)
        await _call_over_both(testbed, f"result: {name}", f"{PATTERNS_SERVER}.scan")


async def answer_with_framing(testbed: Testbed, only: str | None = None) -> None:
    """Call a peer whose answers are heads, chunks of one byte or trailers without end."""
    for kind in KINDS:
        for tool in ("peer.answer", "peer_mcp.recite"):
            if only in (None, kind):
                call = {"tool": tool, "arguments": {"kind": kind}}
                await testbed.measure_json(f"{FRAMING}{kind}, {tool}", "POST", "/v1/calls", call)


async def send_many_objects(testbed: Testbed) -> None:
    document = corpus.build_arguments()["many objects"]
    call = b'{"tool":"stalls.echo","arguments":{"value":' + document + b"}}"
    await testbed.measure("many objects over REST", "POST", "/v1/calls", call)


def build_pattern_results() -> dict[str, bytes]:
    """Build results that take long to compare with their schema; the old matcher takes exponential time for names."""
    values = {
        SHORT_NAME: {"a" * 23 + "!": "x"},
        "small fractions": {"fractions": [199e-300] * 1_900},
        "long names and patterns": {"a" * 3_000 + str(each): "x" for each in range(1_000)},
    }
    trees = {f"tree {name}": {"tree": orjson.loads(text)} for name, text in corpus.build_expressions().items()}
    return {
        name: orjson.dumps({"resultType": "complete", "content": [], "structuredContent": value})
        for name, value in {**values, **trees}.items()
    }


async def send_definitions(testbed: Testbed) -> None:
    definitions = corpus.build_definitions()
    for server, name in list_definition_servers().items():
        await testbed.declare(server, "tools", definitions[name])
        await testbed.measure(f"first import: {name}", "POST", f"/v1/servers/{server}/test")
        changed = definitions[name].replace(b"something", b"anything at all")
        await testbed.declare(server, "tools", changed)
        await testbed.measure(f"changed: {name}", "POST", f"/v1/servers/{server}/test")
        await testbed.measure(f"changes of: {name}", "GET", f"/v1/servers/{server}/changes?limit=2000")
        await testbed.measure(f"server: {name}", "GET", f"/v1/servers/{server}")
        await testbed.measure_json(
            f"call: {name}", "POST", "/v1/calls", {"tool": f"{server}.lookup", "arguments": {"a": "x", "p0": "y"}}
        )
    await testbed.measure("tools over REST", "GET", "/v1/tools?limit=1000")
    await testbed.measure("search over REST", "GET", "/v1/tools/search?q=" + "look%20up%20" * 400)
    await testbed.measure("surface", "GET", "/v1/surface")
    await _send_mcp(testbed, "tools over MCP", "tools/list", b"{}")


async def send_manifests(testbed: Testbed) -> None:
    contract: dict[str, Any] = {
        "name": "stalls.greet", "description": "Greets somebody by the name that is given.", "effects": "read",
        "auth": {"scopes": []}, "timeout": 5, "idempotency": "idempotent",
        "output_schema": {"type": "string"}, "handler": {"driver": "python", "target": "tools.stalls:greet"},
    }  # fmt: skip
    for number, (name, schema) in enumerate(corpus.build_schemas().items(), start=2):
        for field, other in (("input_schema", "output_schema"), ("output_schema", "input_schema")):
            manifest = {**contract, "version": f"{number}.0.0", other: {"type": "object"}, field: schema}
            await testbed.measure_json(f"manifest, {field}: {name}", "POST", "/v1/tools", manifest)
    others: dict[str, dict[str, Any]] = {
        "long lists": {"tags": ["x" * 60] * 15_000, "examples": [{"a": 1}] * 1_000},
        "many unknown fields": {f"f{each}": each for each in range(18_000)},
        "many scopes": {"auth": {"scopes": [f"s{each}:read" for each in range(15_000)]}},
        "many resources": {"resources": [f"create r{each}/{{a}}" for each in range(15_000)]},
    }
    for name, value in others.items():
        await testbed.measure_json(f"manifest: {name}", "POST", "/v1/tools", {**contract, "version": "9.0.0", **value})


async def send_policies(testbed: Testbed) -> None:
    greet = {"tool": "stalls.greet", "arguments": {"name": "a" * 8_000}}
    made = await testbed.measure_json("a call to explain", "POST", "/v1/calls", greet, tenant=_HOSTILE_TENANT)
    call_ids = [made.json().get("call_id", "")]
    for name, text in corpus.build_rules().items():
        value = {"files": [{"path": "hostile.cedar", "text": text}]}
        for path in ("/v1/policies/check", "/v1/policies/backtest"):
            await testbed.measure_json(f"{path}: {name}", "POST", path, value, tenant=_HOSTILE_TENANT)
        put = await testbed.measure_json(f"put: {name}", "PUT", "/v1/policies", value, tenant=_HOSTILE_TENANT)
        if put.status != 200:
            continue
        call = await testbed.measure_json(f"call under: {name}", "POST", "/v1/calls", greet, tenant=_HOSTILE_TENANT)
        call_ids.append(call.json().get("call_id") or call.json().get("instance", "").rpartition("/")[2])
        for call_id in (call_ids[0], call_ids[-1]):
            await testbed.measure(
                f"explain under: {name}", "GET", f"/v1/calls/{call_id}/decision", tenant=_HOSTILE_TENANT
            )
        dry = {**greet, "dry_run": True}
        await testbed.measure_json(f"dry run under: {name}", "POST", "/v1/calls", dry, tenant=_HOSTILE_TENANT)
        for path in ("/v1/policies", "/v1/surface", "/v1/tools", "/v1/approvals/suggestions"):
            await testbed.measure(f"{path} under: {name}", "GET", path, tenant=_HOSTILE_TENANT)
        await _send_mcp(testbed, f"tools over MCP under: {name}", "tools/list", b"{}", tenant=_HOSTILE_TENANT)
    value = {"files": [{"path": "open.cedar", "text": POLICIES}]}
    await testbed.measure_json("put: open", "PUT", "/v1/policies", value, tenant=_HOSTILE_TENANT)


async def show_console_pages(testbed: Testbed) -> None:
    browser = await testbed.people.sign_in(testbed.gateway.url, "ann")
    cookie = {"cookie": f"{SESSION}={browser.session}"}
    for name, document in {**corpus.build_arguments(), **corpus.build_small_arguments()}.items():
        call = b'{"tool":"stalls.wipe","arguments":{"value":' + document + b'},"mode":"async"}'
        answer = await testbed.measure(f"{name}, to approve", "POST", "/v1/calls", call)
        if answer.status not in (200, 202):
            continue
        pages = ["/v1/approvals?limit=50"]
        listed = await testbed.measure(f"approvals with {name}", "GET", pages[0])
        requests = listed.json().get("approvals") or []
        if requests:
            ticket = requests[0]["approval_id"]
            await testbed.measure(f"approval with {name}", "GET", f"/v1/approvals/{ticket}")
            await testbed.measure(f"page of {name}", "GET", f"/console/approvals/{ticket}", headers=cookie)
        await testbed.measure(f"page of approvals with {name}", "GET", "/console/approvals", headers=cookie)
        await testbed.measure(f"calls with {name}", "GET", "/v1/calls?limit=100")


async def _call_over_both(testbed: Testbed, name: str, tool: str) -> None:
    answer = await testbed.measure_json(f"{name} over REST", "POST", "/v1/calls", {"tool": tool, "arguments": {}})
    await _call_over_mcp(testbed, f"{name} over MCP", tool, b"{}")
    call_id = str(answer.json().get("call_id", ""))
    await testbed.measure(f"{name}, read again", "GET", f"/v1/calls/{call_id}")


async def _call_over_mcp(testbed: Testbed, name: str, tool: str, arguments: bytes) -> None:
    outward = to_outward_name(tool)
    params = b'{"name":"' + outward.encode() + b'","arguments":' + arguments + b"}"
    await _send_mcp(testbed, name, "tools/call", params, tool=outward)


async def _send_mcp(
    testbed: Testbed, name: str, method: str, params: bytes, *, tool: str = "", tenant: str = "acme"
) -> None:
    meta = orjson.dumps({PROTOCOL_VERSION_KEY: MODERN_VERSION, CLIENT_CAPABILITIES: {}})
    separator = b"" if params == b"{}" else b","
    body = (
        b'{"jsonrpc":"2.0","id":1,"method":"' + method.encode() + b'","params":'
        + params[:-1] + separator + b'"_meta":' + meta + b"}}"
    )  # fmt: skip
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN_VERSION,
        "mcp-method": method,
        **({"mcp-name": tool} if tool else {}),
    }
    await testbed.measure(name, "POST", "/mcp", body, tenant=tenant, headers=headers)


Attack = Callable[[Testbed], Awaitable[None]]
QUICK_ATTACKS: Sequence[Attack] = (send_arguments, send_results, answer_with_framing)
ATTACKS: Sequence[Attack] = (*QUICK_ATTACKS, send_definitions, send_manifests, show_console_pages, send_policies)
