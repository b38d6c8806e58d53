"""Translate the messages of requests into the fields that every interface parses, and refuse what is not known."""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from deputize.core.call import CallRequest
from deputize.core.errors import MalformedRequest, ParseFailed
from deputize.interfaces.call_request import MAX_DEADLINE_MS, parse_call_request, parse_idempotency_key
from deputize.interfaces.grpc import deputize_v1_pb2 as messages
from deputize.interfaces.json_body import read_json_off_loop

_TEXT_FIELDS: Final = (
    "tool", "version", "session", "step", "mode", "native_call_id", "parent_call_id", "flow_id",
)  # fmt: skip
_FLAG_FIELDS: Final = {"dry_run": "dry_run", "may_continue": "continue", "did_not_happen": "did_not_happen"}
_MAX_CAPABILITIES: Final = 20
_SINGLE_KEYS: Final = frozenset({"authorization", "idempotency-key", "traceparent"})
# The share of the client's time that is kept for the answer's way back, and the most of it, in milliseconds.
_RETURN_SHARE: Final = 0.05
_MAX_RETURN_MS: Final = 100
# Of a message whose unknown field is named.
_MAX_NAMED_BYTES: Final = 4096

M = TypeVar("M", bound=Message)


def parse_metadata(pairs: Sequence[tuple[str, str | bytes]]) -> dict[str, bytes]:
    """Read the metadata by key. Refuse a repeated security key: proxies differ on which value counts."""
    values: dict[str, bytes] = {}
    for key, value in pairs:
        if key in values and key in _SINGLE_KEYS:
            raise MalformedRequest(f"the metadata {key} was sent more than once")
        # As it was sent: a character that became another one would make two idempotency keys the same.
        values[key] = value if isinstance(value, bytes) else value.encode()
    return values


def parse_message(kind: type[M], data: bytes) -> M:
    """Parse a message and refuse fields that it does not have: a client that sends one expects it to be obeyed."""
    message: M = kind()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise ParseFailed(f"the message is not a {kind.DESCRIPTOR.full_name}") from None
    # By size: a list of all unknown fields of a large message would keep the event loop busy for most of a second.
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise _build_unknown_field_error(kind, data)
    return message


def _build_unknown_field_error(kind: type[Message], data: bytes) -> MalformedRequest:
    unknown = _find_unknown_field(kind.FromString(data)) if len(data) <= _MAX_NAMED_BYTES else None
    name, number = unknown or (kind.DESCRIPTOR.full_name, "that you sent")
    return MalformedRequest(
        f"{name} has no field {number} in this release; generate the client from the gateway's deputize_v1.proto"
    )


def _find_unknown_field(message: Message) -> tuple[str, str] | None:
    unknown = UnknownFieldSet(message)
    if len(unknown):
        return message.DESCRIPTOR.full_name, str(unknown[0].field_number)
    parts = (_find_unknown_field(value) for _, value in message.ListFields() if isinstance(value, Message))
    return next((each for each in parts if each is not None), None)


def compute_deadline_ms(remaining_seconds: float | None) -> int | None:
    """Compute the deadline of a call from what is left of the RPC's; some of it is for the answer's way back."""
    if remaining_seconds is None:
        return None
    remaining_ms = remaining_seconds * 1000
    deadline_ms = remaining_ms - min(remaining_ms * _RETURN_SHARE, _MAX_RETURN_MS)
    return max(1, min(int(deadline_ms), MAX_DEADLINE_MS))


async def build_call_request(
    message: messages.CallRequest, metadata: dict[str, bytes], deadline_ms: int | None, max_depth: int
) -> CallRequest:
    """Build the request of a call, by the rules of every other interface."""
    fields: dict[str, Any] = {name: value for name in _TEXT_FIELDS if (value := getattr(message, name))}
    fields |= {field: True for name, field in _FLAG_FIELDS.items() if getattr(message, name)}
    fields["arguments"] = await read_json_off_loop(message.arguments, max_depth) if message.arguments else {}
    if message.priority:
        fields["priority"] = message.priority
    if message.HasField("max_age_seconds"):
        fields["max_age_seconds"] = message.max_age_seconds
    if deadline_ms is not None:
        fields["deadline_ms"] = deadline_ms
    if message.HasField("callback"):
        fields["callback"] = _build_callback(message.callback)
    if message.client_capabilities:
        if len(message.client_capabilities) > _MAX_CAPABILITIES:
            raise MalformedRequest(
                f"client_capabilities may list {_MAX_CAPABILITIES} kinds", details={"field": "client_capabilities"}
            )
        fields["client_capabilities"] = list(message.client_capabilities)
    if message.HasField("input_responses"):
        responses = message.input_responses.responses
        fields["input_responses"] = {
            "round_token": message.input_responses.round_token,
            "responses": await read_json_off_loop(responses, max_depth) if responses else {},
        }
    key, traceparent = metadata.get("idempotency-key"), metadata.get("traceparent")
    return parse_call_request(
        fields,
        key=None if key is None else parse_idempotency_key(key),
        traceparent=None if traceparent is None else traceparent.decode("latin-1"),
    )


def _build_callback(callback: messages.Callback) -> dict[str, Any]:
    fields: dict[str, Any] = {"url": callback.url, "include_result": callback.include_result}
    return {**fields, "secret": callback.secret} if callback.secret else fields
