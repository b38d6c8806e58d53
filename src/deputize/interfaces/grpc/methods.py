"""Serve the methods of `deputize_v1.proto`, each with a method of the gateway."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import orjson

from deputize.core.contract.tools import ToolProgress
from deputize.core.errors import MalformedRequest, Unavailable
from deputize.core.outcome import Outcome
from deputize.interfaces.call_batch import parse_call_batch, render_batch_results
from deputize.interfaces.call_request import MAX_TOOL_LENGTH
from deputize.interfaces.grpc import deputize_v1_pb2 as messages
from deputize.interfaces.grpc.request_fields import build_call_request, compute_deadline_ms
from deputize.interfaces.grpc.rpc import ProgressReports, Rpc
from deputize.interfaces.grpc.status import FailedRpc, describe_outcome, encode_headers
from deputize.interfaces.json_body import read_json_off_loop
from deputize.operations.gateway import CallEvent, Gateway

_MAX_ID_LENGTH: Final = 100
_DEFAULT_LIMIT: Final = 100
_MAX_LIMIT: Final = 500

T = TypeVar("T")
# Returns how the RPC failed, or None.
Method = Callable[[Gateway, Rpc], Awaitable[FailedRpc | None]]


class GrpcMethods:
    """The methods, and the calls that they run."""

    def __init__(self, shutdown: asyncio.Event) -> None:
        self._shutdown = shutdown
        # Calls go on when their clients have left, as over HTTP: what they did is recorded either way.
        self._calls: set[asyncio.Future[Any]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.by_name: dict[str, Method] = {
            "Call": self._call,
            "CallWithProgress": self._call_with_progress,
            "CallBatch": self._call_batch,
            "GetCall": _get_call,
            "FollowCall": self._follow_call,
            "CancelCall": _cancel_call,
            "ListTools": _list_tools,
        }

    @property
    def has_calls(self) -> bool:
        """Whether a call is in progress."""
        return bool(self._calls)

    async def wait_for_calls(self) -> None:
        """Wait for the calls whose clients have left."""
        while self._calls:
            await asyncio.wait(self._calls)

    async def _call(self, gateway: Gateway, rpc: Rpc) -> FailedRpc | None:
        with self._start_calls(gateway, partial(_reach_outcome, gateway, rpc)) as call:
            return await _answer_call(gateway, rpc, await asyncio.shield(call), lambda response: response)

    async def _call_with_progress(self, gateway: Gateway, rpc: Rpc) -> FailedRpc | None:
        reports = ProgressReports()
        with self._start_calls(gateway, partial(_reach_outcome, gateway, rpc, reports)) as call:
            async for each in reports.follow(call):
                await rpc.send_message(messages.CallStep(progress=_build_progress(each)))
            return await _answer_call(
                gateway, rpc, await asyncio.shield(call), lambda response: messages.CallStep(outcome=response)
            )

    async def _call_batch(self, gateway: Gateway, rpc: Rpc) -> None:
        with self._start_calls(gateway, partial(_reach_outcomes, gateway, rpc)) as calls:
            results = orjson.dumps(render_batch_results(await asyncio.shield(calls), rpc.trace_id))
            await rpc.send_message(messages.CallBatchResponse(results=results))

    @contextlib.contextmanager
    def _start_calls(self, gateway: Gateway, run: Callable[[], Awaitable[T]]) -> "Iterator[asyncio.Future[T]]":
        """Start the calls of an RPC: the block must answer it."""
        ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        is_answered = asyncio.Event()
        self._calls.add(ended)
        ended.add_done_callback(self._end_calls)
        task = asyncio.create_task(_run_calls(gateway, run, ended, is_answered), name="grpc-call")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            yield ended
        finally:
            is_answered.set()

    def _end_calls(self, ended: "asyncio.Future[Any]") -> None:
        self._calls.discard(ended)
        if not ended.cancelled():
            # Its client may have left, so that there is none to raise it to; the lifecycle has recorded it.
            ended.exception()

    async def _follow_call(self, gateway: Gateway, rpc: Rpc) -> None:
        with gateway.open_request():
            caller = await gateway.authenticate(rpc.authorization)
            message = await rpc.read_message(messages.FollowCallRequest)
            after = _require_length(message.after, "after", _MAX_ID_LENGTH) or None
            events = await gateway.calls.follow_call(caller, _require_call_id(message.call_id), after=after)
            async for each in self._follow_until_shutdown(events):
                data = orjson.dumps(each.facts)
                await rpc.send_message(messages.CallEvent(id=each.id, event=each.event, data=data))

    async def _follow_until_shutdown(self, events: AsyncIterator[CallEvent]) -> AsyncIterator[CallEvent]:
        shutdown = asyncio.ensure_future(self._shutdown.wait())
        next_event = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                tasks: set[asyncio.Future[Any]] = {next_event, shutdown}
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if not next_event.done():
                    raise Unavailable("the gateway is stopping; follow the call at another one", retry_after_ms=1000)
                event = next_event.result()
                if event is None:
                    return
                yield event
                next_event = asyncio.ensure_future(anext(events, None))
        finally:
            shutdown.cancel()
            next_event.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await next_event


async def _run_calls(
    gateway: Gateway, run: Callable[[], Awaitable[T]], ended: "asyncio.Future[T]", is_answered: asyncio.Event
) -> None:
    """Run calls to their outcomes. They keep their caller's slot until then, and until the client has read or left."""
    with gateway.open_request():
        try:
            ended.set_result(await run())
        except Exception as error:  # noqa: BLE001 -- the RPC raises it
            ended.set_exception(error)
        except asyncio.CancelledError:
            ended.cancel()
            raise
        await is_answered.wait()


async def _reach_outcomes(gateway: Gateway, rpc: Rpc) -> Sequence[Outcome | Exception]:
    caller = await gateway.authenticate_for_call(rpc.authorization)
    message = await rpc.read_message(messages.CallBatchRequest)
    if "idempotency-key" in rpc.metadata:
        raise MalformedRequest("each call of a batch has a key of its own, in its field idempotency_key")
    traceparent = rpc.metadata.get("traceparent")
    batch = parse_call_batch(
        await read_json_off_loop(message.batch, gateway.settings.server.max_depth),
        traceparent=None if traceparent is None else traceparent.decode("latin-1"),
        deadline_ms=compute_deadline_ms(rpc.remaining_seconds),
    )
    return await gateway.run_calls(caller, batch)


async def _reach_outcome(gateway: Gateway, rpc: Rpc, reports: ProgressReports | None = None) -> Outcome:
    caller = await gateway.authenticate_for_call(rpc.authorization)
    message = await rpc.read_message(messages.CallRequest)
    deadline_ms = compute_deadline_ms(rpc.remaining_seconds)
    request = await build_call_request(message, rpc.metadata, deadline_ms, gateway.settings.server.max_depth)
    if reports is not None:
        request = request.with_progress_callback(reports.add_report)
    return await gateway.run_call(caller, request)


async def _answer_call(
    gateway: Gateway,
    rpc: Rpc,
    outcome: Outcome,
    wrap: Callable[[messages.CallResponse], messages.CallResponse | messages.CallStep],
) -> FailedRpc | None:
    if outcome.deprecation is not None:
        rpc.set_trailing_metadata(encode_headers(outcome.deprecation.build_headers()))
    if outcome.spec is not None:
        return await describe_outcome(outcome, outcome.spec, gateway.metadata_url)
    response = messages.CallResponse(
        call_id=outcome.call_id,
        state=outcome.state.value,
        envelope=outcome.body,
        is_accepted=outcome.is_accepted,
        retry_after_ms=outcome.retry_after_ms or 0,
        is_replay=outcome.is_replay,
        is_joined=outcome.is_joined,
    )
    await rpc.send_message(wrap(response))
    return None


def _build_progress(progress: ToolProgress) -> messages.Progress:
    return messages.Progress(
        current=progress.current, total=progress.total, message=progress.message, partial=progress.partial or b""
    )


async def _get_call(gateway: Gateway, rpc: Rpc) -> None:
    with gateway.open_request():
        caller = await gateway.authenticate(rpc.authorization)
        message = await rpc.read_message(messages.GetCallRequest)
        view = await gateway.calls.show_call(caller, _require_call_id(message.call_id))
        response = messages.GetCallResponse(envelope=view.envelope.body, poll_after_ms=view.poll_after_ms or 0)
        await rpc.send_message(response)


async def _cancel_call(gateway: Gateway, rpc: Rpc) -> None:
    with gateway.open_request():
        caller = await gateway.authenticate(rpc.authorization)
        message = await rpc.read_message(messages.CancelCallRequest)
        reply = await gateway.cancellations.cancel_call(caller, _require_call_id(message.call_id))
        await rpc.send_message(messages.CancelCallResponse(**reply))


async def _list_tools(gateway: Gateway, rpc: Rpc) -> None:
    with gateway.open_request():
        caller = await gateway.authenticate(rpc.authorization)
        message = await rpc.read_message(messages.ListToolsRequest)
        after, limit = _require_length(message.after, "after", MAX_TOOL_LENGTH), message.limit or _DEFAULT_LIMIT
        if not 0 < limit <= _MAX_LIMIT:
            raise MalformedRequest(f"limit must be a whole number from 1 to {_MAX_LIMIT}", details={"field": "limit"})
        page = await gateway.surface.list_tools(caller, after=after, limit=limit)
        tools = [
            messages.Tool(
                name=each["name"],
                version=each["version"],
                description=each["description"],
                summary=orjson.dumps(each),
            )
            for each in page.tools
        ]
        await rpc.send_message(messages.ListToolsResponse(tools=tools, next_after=page.next_after or ""))


def _require_call_id(call_id: str) -> str:
    if not call_id:
        raise MalformedRequest("call_id is missing", details={"field": "call_id"})
    return _require_length(call_id, "call_id", _MAX_ID_LENGTH)


def _require_length(text: str, field: str, max_length: int) -> str:
    if len(text) > max_length:
        raise MalformedRequest(f"{field} must be text of 1 to {max_length} characters", details={"field": field})
    return text
