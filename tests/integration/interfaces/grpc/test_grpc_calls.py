"""Calls over gRPC: the same calls as over REST, with the same outcomes, refusals and keys."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import jwt
import orjson
import pytest
import pytest_asyncio
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from deputize import ToolContext, tool
from deputize.app import open_worker
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.clock import Clock
from deputize.core.errors import list_problem_types
from deputize.core.settings import GrpcSettings
from deputize.interfaces.grpc import deputize_v1_pb2 as messages
from tests.integration.conftest import OTHER_ISSUER, HttpGateway, serve_gateway
from tests.support import shop_tools
from tests.support.grpc_client import GrpcClient, open_client, read_problem

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


@tool(effects="read", namespace="grpclab", timeout=60)
async def tell_deadline(context: ToolContext) -> float:
    """Tell how many seconds this call has left."""
    return context.seconds_left


@tool(effects="read", namespace="grpclab", timeout=60)
async def report_steps(context: ToolContext) -> str:
    """Report two steps and a part of the result."""
    context.progress(1, 2, "first")
    context.partial({"half": 1})
    await asyncio.to_thread(context.progress, 2, 2, "second")
    return "done"


TOOLS = [*shop_tools.TOOLS, *(getattr(each, ATTRIBUTE) for each in (tell_deadline, report_steps))]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpGateway]:
    async with serve_gateway(
        module_database,
        tmp_path_factory.mktemp("grpc"),
        change=lambda settings: settings.model_copy(update={"grpc": GrpcSettings(port=0)}),
        gateway_options={"tools": TOOLS},
    ) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client(gateway: HttpGateway) -> AsyncIterator[GrpcClient]:
    assert gateway.grpc_address is not None
    async with open_client(gateway.grpc_address, gateway.token()) as client:
        yield client


async def fail(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value


async def repeat_until_ended(
    client: GrpcClient, tool_name: str, arguments: dict[str, Any], *, key: str
) -> messages.CallResponse:
    """Repeat a call that another request made until it has ended."""
    async with asyncio.timeout(90):
        while True:
            try:
                return await client.call(tool_name, arguments, key=key)
            except grpc.aio.AioRpcError as error:
                if read_problem(error).slug != "in-flight":
                    raise
            await asyncio.sleep(0.05)


def build_batch(*calls: Any, **more: Any) -> messages.CallBatchRequest:
    return messages.CallBatchRequest(batch=orjson.dumps({"calls": list(calls), **more}))


@pytest.mark.requirement("INV-9", "INV-1")
async def test_a_batch_over_grpc_is_the_batch_of_rest(gateway: HttpGateway, client: GrpcClient) -> None:
    calls = [
        {"tool": "shop.rename_user", "arguments": {"id": 1, "name": "Ana"}, "idempotency_key": "grpc-batch"},
        {"tool": "grpclab.tell_deadline"},
        {"tool": "shop.nothing"},
        {"tool": "shop.get_user", "arguments": {"id": 7}, "depends_on": [2]},
    ]
    answer = await client.start("CallBatch", build_batch(*calls), timeout=30)
    results = orjson.loads(answer.results)["results"]
    assert [each["status"] for each in results] == [200, 200, 404, 409]
    # The deadline of the RPC is that of its calls.
    assert 10 < results[1]["envelope"]["result"] <= 30
    over_rest = await gateway.call("shop.rename_user", {"id": 1, "name": "Ana"}, key="grpc-batch")
    assert over_rest.headers["idempotency-replayed"] == "true"
    assert over_rest.content in answer.results


@pytest.mark.parametrize(
    ("request_", "metadata", "message"),
    [
        (build_batch(), (), "a batch holds 1 to 50 calls"),
        (build_batch({"tool": 7}), (), "calls[0]: tool must be"),
        (messages.CallBatchRequest(batch=b"[]"), (), "a batch is an object with calls"),
        (messages.CallBatchRequest(), (), "the body is not JSON"),
        (build_batch({"tool": "shop.get_user"}), (("idempotency-key", "all"),), "each call of a batch has a key"),
    ],
)
async def test_a_batch_with_a_mistake_runs_nothing(
    client: GrpcClient, request_: messages.CallBatchRequest, metadata: Any, message: str
) -> None:
    before = len(shop_tools.effects)
    error = await fail(client.start("CallBatch", request_, metadata=metadata))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.details() or "").startswith(message)
    assert len(shop_tools.effects) == before


async def test_a_batch_over_grpc_reaches_no_tool_of_another_tenant(gateway: HttpGateway, client: GrpcClient) -> None:
    batch = build_batch({"tool": "shop.get_user", "arguments": {"id": 7}})
    answer = await client.start("CallBatch", batch, token=gateway.other_token())
    assert [each["status"] for each in orjson.loads(answer.results)["results"]] == [404]


@pytest.mark.requirement("INV-1")
async def test_a_call_over_grpc_is_the_same_call(gateway: HttpGateway, client: GrpcClient) -> None:
    over_grpc = await client.call("shop.get_user", {"id": 7})
    over_rest = (await gateway.call("shop.get_user", {"id": 7})).json()
    envelope = orjson.loads(over_grpc.envelope)
    assert (over_grpc.state, over_grpc.call_id) == ("succeeded", envelope["call_id"])
    assert envelope.keys() == over_rest.keys()
    assert envelope["result"] == over_rest["result"]


@pytest.mark.requirement("INV-5")
async def test_an_idempotency_key_is_shared_with_other_interfaces(gateway: HttpGateway, client: GrpcClient) -> None:
    asked = {"id": 1, "name": "Ana"}
    first = await gateway.call("shop.rename_user", asked, key="grpc-1")
    again = await client.call("shop.rename_user", asked, key="grpc-1")
    assert again.is_replay
    assert again.envelope == first.content
    conflict = await fail(client.call("shop.rename_user", {"id": 1, "name": "Bo"}, key="grpc-1"))
    assert read_problem(conflict).slug == "key-reused"


async def test_a_trace_id_arrives_and_returns(client: GrpcClient) -> None:
    parent = [("traceparent", f"00-{TRACE_ID}-00f067aa0ba902b7-01")]
    response = await client.call("shop.get_user", {"id": 7}, metadata=parent)
    assert orjson.loads(response.envelope)["trace_id"] == TRACE_ID
    refused = await fail(client.call("shop.get_user", {"id": 0}, metadata=parent))
    assert read_problem(refused).trace_id == TRACE_ID


async def test_the_deadline_of_an_rpc_is_the_deadline_of_the_call(client: GrpcClient) -> None:
    for timeout, most in ((40.0, 40.0), (None, 60.0), (3.2e8, 60.0)):
        response = await client.call("grpclab.tell_deadline", timeout=timeout)
        assert 0 < orjson.loads(response.envelope)["result"] < most


async def test_progress_arrives_before_the_outcome(client: GrpcClient) -> None:
    steps = [each async for each in client.start("CallWithProgress", messages.CallRequest(tool="grpclab.report_steps"))]
    reports = [each.progress for each in steps[:-1]]
    assert [(each.current, each.total, each.message) for each in reports if each.message] == [
        (1, 2, "first"),
        (2, 2, "second"),
    ]
    assert [orjson.loads(each.partial) for each in reports if each.partial] == [{"half": 1}]
    assert orjson.loads(steps[-1].outcome.envelope)["result"] == "done"


async def test_the_status_comes_from_the_table_of_errors(client: GrpcClient) -> None:
    failed = await fail(client.call("shop.fail", {"slug": "upstream-unavailable"}))
    problem, details = read_problem(failed), dict(failed.trailing_metadata())["grpc-status-details-bin"]
    assert failed.code() is grpc.StatusCode.UNAVAILABLE
    assert (problem.slug, problem.is_retryable, problem.state) == ("upstream-unavailable", True, "failed")
    assert problem.advice
    assert problem.call_id
    info, retry = ErrorInfo(), RetryInfo()
    status = Status.FromString(details)
    assert status.details[0].Unpack(info)
    assert (info.domain, info.reason, info.metadata["number"]) == ("deputize", problem.code, problem.number)
    assert status.details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == problem.retry_after_ms == 1500


async def test_invalid_arguments_name_their_fields(client: GrpcClient) -> None:
    refused = await fail(client.call("shop.get_user", {"id": 0}))
    problem = read_problem(refused)
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (problem.code, problem.state) == ("INVALID_INPUT", "validation_failed")
    assert orjson.loads(problem.details)["errors"]


def test_every_error_has_a_status() -> None:
    for kind in list_problem_types():
        assert grpc.StatusCode[kind.spec.grpc] is not grpc.StatusCode.OK


@pytest.mark.requirement("GOV-1")
async def test_only_tokens_that_rest_accepts_are_accepted(gateway: HttpGateway, client: GrpcClient) -> None:
    now = Clock().epoch_ms() // 1000
    bound = {
        "iss": OTHER_ISSUER, "aud": "deputize", "sub": "olaf", "iat": now, "exp": now + 3600, "auth_time": now,
        "jti": Clock().new_id(), "cnf": {"jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"},
    }  # fmt: skip
    bound_token = jwt.encode(bound, gateway.other_key, algorithm="EdDSA", headers={"kid": "other"})
    requests: dict[str, Any] = {
        "Call": messages.CallRequest(tool="shop.get_user"),
        "CallBatch": build_batch({"tool": "shop.get_user"}),
        "GetCall": messages.GetCallRequest(call_id="x"),
        "CancelCall": messages.CancelCallRequest(call_id="x"),
        "ListTools": messages.ListToolsRequest(),
    }
    for token in ("", "nonsense", bound_token):
        for method, request in requests.items():
            refused = await fail(client.start(method, request, token=token))
            over_rest = await gateway.http.get(
                "/v1/tools", headers={"authorization": f"Bearer {token}"} if token else {}
            )
            assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
            assert read_problem(refused).slug == over_rest.json()["error"]["slug"]
            assert dict(refused.trailing_metadata())["www-authenticate"] == over_rest.headers["www-authenticate"]
    twice = await fail(client.call("shop.get_user", {"id": 1}, metadata=[("authorization", "Bearer other")]))
    assert twice.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.requirement("GOV-1")
async def test_another_tenant_finds_no_call(gateway: HttpGateway, client: GrpcClient) -> None:
    made = await client.call("shop.rename_user", {"id": 5, "name": "Eve"}, key="grpc-tenant")
    shown = await client.start("GetCall", messages.GetCallRequest(call_id=made.call_id))
    assert shown.envelope == made.envelope
    other = gateway.other_token()
    for method, request in (
        ("GetCall", messages.GetCallRequest(call_id=made.call_id)),
        ("CancelCall", messages.CancelCallRequest(call_id=made.call_id)),
    ):
        refused = await fail(client.start(method, request, token=other))
        assert refused.code() is grpc.StatusCode.NOT_FOUND
    stream = client.start("FollowCall", messages.FollowCallRequest(call_id=made.call_id), token=other)
    assert (await fail(anext(aiter(stream)))).code() is grpc.StatusCode.NOT_FOUND
    tools = await client.start("ListTools", messages.ListToolsRequest(), token=other)
    assert not [each for each in tools.tools if each.name.startswith("shop.")]


async def test_tools_are_listed_in_pages(gateway: HttpGateway, client: GrpcClient) -> None:
    names, after = [], ""
    while True:
        page = await client.start("ListTools", messages.ListToolsRequest(after=after, limit=3))
        names += [each.name for each in page.tools]
        after = page.next_after
        if not after:
            break
    over_rest = (await gateway.get("/v1/tools", limit=500)).json()["tools"]
    assert names == [each["name"] for each in over_rest]
    assert orjson.loads(page.tools[-1].summary) == over_rest[-1]


async def test_a_queued_call_is_followed_and_canceled(gateway: HttpGateway, client: GrpcClient) -> None:
    accepted = await client.call("shop.rename_user", {"id": 6, "name": "Al"}, key="grpc-queued", mode="async")
    assert (accepted.is_accepted, accepted.state) == (True, "queued")
    stream = client.start("FollowCall", messages.FollowCallRequest(call_id=accepted.call_id))
    events = aiter(stream)
    assert (await anext(events)).event == "tool.invocation.queued"
    canceled = await client.start("CancelCall", messages.CancelCallRequest(call_id=accepted.call_id))
    assert (canceled.state, canceled.cancel) == ("canceled", "canceled")
    last = [each async for each in events][-1]
    assert last.event == "tool.invocation.canceled"
    assert orjson.loads(last.data)["call_id"] == accepted.call_id


async def test_a_worker_executes_a_queued_call(gateway: HttpGateway, client: GrpcClient) -> None:
    assert gateway.in_process is not None
    accepted = await client.call("shop.rename_user", {"id": 8, "name": "Cy"}, key="grpc-worker", mode="async")
    async with open_worker(gateway.in_process):
        request = messages.FollowCallRequest(call_id=accepted.call_id)
        events = [each.event async for each in client.start("FollowCall", request)]
    assert events[-1] == "tool.invocation.succeeded"


async def test_a_call_outlives_the_client_that_made_it(gateway: HttpGateway, client: GrpcClient) -> None:
    name = "grpc-leaves"
    started = shop_tools.start_events.setdefault(name, asyncio.Event())
    rpc = client.start(
        "Call",
        messages.CallRequest(tool="shop.slow_note", arguments=orjson.dumps({"name": name})),
        metadata=[("idempotency-key", name)],
    )
    async with asyncio.timeout(90):
        await started.wait()
    rpc.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rpc
    shop_tools.release_events.setdefault(name, asyncio.Event()).set()
    outcome = await repeat_until_ended(client, "shop.slow_note", {"name": name}, key=name)
    assert outcome.is_joined or outcome.is_replay
    assert outcome.state == "succeeded"
    assert shop_tools.effects.count(("note", name)) == 1


@pytest.mark.parametrize(
    ("fields", "slug"),
    [
        ({"tool": ""}, "malformed"),
        ({"tool": "shop.get_user", "arguments": b"[]"}, "malformed"),
        ({"tool": "shop.get_user", "arguments": b'{"id": 1, "id": 2}'}, "parse-failed"),
        ({"tool": "shop.get_user", "arguments": b"{" * 100}, "parse-failed"),
        ({"tool": "shop.get_user", "mode": "later"}, "malformed"),
        ({"tool": "shop.get_user", "priority": 11}, "malformed"),
        ({"tool": "shop.get_user", "client_capabilities": ["x"] * 21}, "malformed"),
        ({"tool": "shop.get_user", "callback": messages.Callback(secret="x")}, "malformed"),
        ({"tool": "nothing.here"}, "tool-not-found"),
    ],
)
async def test_what_cannot_be_understood_is_refused(client: GrpcClient, fields: dict[str, Any], slug: str) -> None:
    refused = await fail(client.start("Call", messages.CallRequest(**fields)))
    assert read_problem(refused).slug == slug


async def test_unknown_fields_are_refused_wherever_they_are(client: GrpcClient) -> None:
    unknown = b"\xa0\x06\x01"  # field 100 = 1
    plain = messages.CallRequest(tool="shop.get_user", arguments=b'{"id": 1}').SerializeToString()
    nested = messages.CallRequest(tool="shop.get_user", callback=messages.Callback.FromString(unknown))
    send = client.channel.unary_unary("/deputize.v1.Deputize/Call", None, None)
    metadata = [("authorization", f"Bearer {client.token}")]
    for data in (plain + unknown, nested.SerializeToString()):
        refused = await fail(send(data, metadata=metadata))
        assert read_problem(refused).slug == "malformed"
        assert "no field 100" in str(refused.details())
    refused = await fail(send(b"\xff\xff\xff", metadata=metadata))
    assert read_problem(refused).slug == "parse-failed"


async def test_idle_clients_of_another_method_get_unimplemented(client: GrpcClient) -> None:
    send = client.channel.unary_unary("/deputize.v1.Deputize/Nothing", None, None)
    assert (await fail(send(b""))).code() is grpc.StatusCode.UNIMPLEMENTED
