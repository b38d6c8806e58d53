"""Call methods of gRPC services, as their contracts say and only at the URL in the settings.

The contract holds the method, the definitions of its messages, and where the credential goes; the settings hold the
URL. Arguments and results are JSON by the mapping of Protocol Buffers.
"""

import asyncio
import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import grpc
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message

from deputize.core.contract.contract import Contract, MutationClass, is_safe_to_repeat
from deputize.core.contract.tools import GrpcTool, ToolContext
from deputize.core.errors import (
    CredentialExpired,
    CredentialMissing,
    OutcomeUnknown,
    Problem,
    ResourceLimitExceeded,
    ResultInvalid,
    SemanticViolation,
    ToolFailed,
    ToolRequiresSetup,
    UpstreamRateLimited,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from deputize.core.json_values import MAX_ANSWER_VALUES, run_for_value
from deputize.core.sensitive.text import redact_error_text
from deputize.core.settings import ServiceSettings
from deputize.core.value_types import frozen
from deputize.execute.drivers.grpc_channels import ServiceChannel
from deputize.execute.drivers.http import add_credential
from deputize.execute.drivers.http_answers import ServiceStatus
from deputize.execute.drivers.service_settings import require_service
from deputize.execute.upstreams.faults import UnreadableAnswer, UpstreamNotAtFault

_LONGEST_MESSAGE: Final = 300
_LONGEST_SEARCHED: Final = 4_000
# Decoding a larger message, or one with more values, would make other calls wait.
_SMALL_MESSAGE_BYTES: Final = 16_384
_SMALL_MESSAGE_VALUES: Final = 2_000
# Types of which JSON shows only the content, not the fields.
_JSON_TYPES: Final = frozenset(
    f"google.protobuf.{name}"
    for name in (
        "Struct", "Value", "ListValue", "Timestamp", "Duration", "FieldMask", "BoolValue", "BytesValue", "DoubleValue",
        "FloatValue", "Int32Value", "Int64Value", "StringValue", "UInt32Value", "UInt64Value",
    )
)  # fmt: skip
_MAX_METHODS: Final = 512
# The HTTP status that a retry policy may list for each status of gRPC.
_HTTP_STATUSES: Final = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNKNOWN: 500,
    grpc.StatusCode.DATA_LOSS: 500,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.CANCELLED: 499,
}
# How gRPC itself says that an answer, or the metadata before or after it, was larger than it accepts.
_TOO_LARGE: Final = ("larger than max", "metadata size exceeds")


@frozen
class _MessageClasses:
    """The classes of a method's request and response."""

    request: type[Message]
    response: type[Message]


class GrpcDriver:
    """The driver for methods of gRPC services. `services` are by tenant and name, each with its own connection."""

    def __init__(self, services: Mapping[tuple[str, str], tuple[ServiceSettings, ServiceChannel]]) -> None:
        self._services = services
        # By the digest of the definitions, so that equal ones are loaded once, and the keys are small.
        self._classes: OrderedDict[bytes, _MessageClasses] = OrderedDict()

    def find_tool(self, contract: Contract) -> GrpcTool:
        """Return the method that a contract names."""
        request = contract.handler.request
        if request is None or request.messages is None:
            raise ToolRequiresSetup(
                f"{contract.full_name} {contract.version} does not say which messages it has", nothing_happened=True
            )
        return GrpcTool(contract=contract, service=contract.handler.target.partition("/")[0], request=request)

    async def run(
        self, tool: GrpcTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> dict[str, Any]:
        """Send the request and return its result, or raise the Problem it ended in."""
        assert context is not None, "a call of a service's method always has a context"
        native_facts = tool.contract.external_mappings.get("grpc", {})
        _, service_channel = require_service(
            self._services,
            tool.contract,
            tenant=context.tenant,
            name=tool.service,
            server_url=native_facts.get("server_url"),
        )
        end = asyncio.get_running_loop().time() + seconds
        classes = self._get_classes(tool.request.messages or "")
        data = await run_for_value(arguments, _encode_request, classes.request, arguments)
        metadata = _build_metadata(tool, context)
        channel = await service_channel.open(_require_time(tool, end))
        rpc = send_request(tool, channel, data, metadata, _require_time(tool, end))
        try:
            answer: bytes = await rpc
        except grpc.aio.AioRpcError as error:
            status = _HTTP_STATUSES.get(error.code(), 400)
            raise _build_problem(tool, error) from ServiceStatus(status)
        except (grpc.aio.UsageError, grpc.aio.InternalError) as error:
            raise UpstreamUnavailable(f"the connection to the service {tool.service} was lost") from error
        if len(answer) > _SMALL_MESSAGE_BYTES:
            return await asyncio.to_thread(lambda: _build_result(tool, _parse_response(tool, classes.response, answer)))
        message = _parse_response(tool, classes.response, answer)
        if has_more_fields(message, _SMALL_MESSAGE_VALUES):
            return await asyncio.to_thread(_build_result, tool, message)
        return _build_result(tool, message)

    def _get_classes(self, definitions: str) -> _MessageClasses:
        """Get the classes of a method's messages; those of the methods that were called last are kept."""
        digest = hashlib.sha256(definitions.encode()).digest()
        classes = self._classes.get(digest)
        if classes is None:
            classes = self._classes[digest] = _load_classes(definitions)
            if len(self._classes) > _MAX_METHODS:
                self._classes.popitem(last=False)
        self._classes.move_to_end(digest)
        return classes


def _require_time(tool: GrpcTool, end: float) -> float:
    """Return the seconds that are left, or raise because there are none: what is sent too late may still act."""
    seconds = end - asyncio.get_running_loop().time()
    if seconds <= 0:
        raise UpstreamTimeout(f"no time was left to call the service {tool.service}", nothing_happened=True)
    return seconds


def send_request(
    tool: GrpcTool, channel: Any, data: bytes, metadata: list[tuple[str, str]], seconds: float
) -> grpc.aio.UnaryUnaryCall[bytes, bytes]:
    """Begin a request. A channel that was replaced in the meantime accepts none, so nothing was sent."""
    send = channel.unary_unary(tool.request.path, None, None)
    try:
        rpc: grpc.aio.UnaryUnaryCall[bytes, bytes] = send(data, metadata=metadata, timeout=seconds)
    except grpc.aio.UsageError as error:
        raise UpstreamNotAtFault(
            f"the connection to the service {tool.service} was replaced", nothing_happened=True
        ) from error
    return rpc


def _load_classes(definitions: str) -> _MessageClasses:
    """Load the classes of a method's messages from the definitions in its contract."""
    try:
        descriptor_set = FileDescriptorSet.FromString(base64.b64decode(definitions, validate=True))
        pool = DescriptorPool()
        for each in descriptor_set.file:
            pool.Add(each)
        method = descriptor_set.file[-1].service[0].method[0]
        request, response = (
            message_factory.GetMessageClass(pool.FindMessageTypeByName(name.removeprefix(".")))
            for name in (method.input_type, method.output_type)
        )
    except (DecodeError, binascii.Error, TypeError, KeyError, ValueError, IndexError) as error:
        raise ToolRequiresSetup(
            "the definitions of the method's messages cannot be read",
            advice="Ask the operator to import the service's document again: deputize services import.",
            nothing_happened=True,
        ) from error
    return _MessageClasses(request=request, response=response)


def _encode_request(kind: type[Message], arguments: dict[str, Any]) -> bytes:
    try:
        return json_format.ParseDict(arguments, kind()).SerializeToString(deterministic=True)
    except (json_format.ParseError, ValueError, TypeError, AttributeError) as error:
        words, is_redacted = _shorten(str(error))
        problem = SemanticViolation(f"the arguments do not fit the method's message: {words}", nothing_happened=True)
        raise problem.replace(is_redacted=is_redacted) from error


def _parse_response(tool: GrpcTool, kind: type[Message], data: bytes) -> Message:
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise UnreadableAnswer(f"the service {tool.service} answered with a message that is not valid") from error
    return message


def _build_result(tool: GrpcTool, message: Message) -> dict[str, Any]:
    if has_more_fields(message, MAX_ANSWER_VALUES):
        limit = ResourceLimitExceeded(
            f"the answer of the service {tool.service} has more than {MAX_ANSWER_VALUES:,} values"
        )
        if tool.contract.mutation_class is MutationClass.READ:
            raise limit
        raise OutcomeUnknown(f"{limit.message}; it is unknown whether the service acted") from limit
    try:
        result: dict[str, Any] = json_format.MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
    except (json_format.Error, ValueError, TypeError, AttributeError) as error:
        raise ResultInvalid(f"the service {tool.service} answered with a message that is not valid") from error
    return result


def has_more_fields(message: Message, most: int) -> bool:
    """Tell whether a message has more than so many values in JSON, and stop counting there.

    JSON shows the fields of an empty message, too: two bytes of an answer can become hundreds of values.
    """
    count, stack = 0, [message]
    while stack:
        each = stack.pop()
        fields = each.ListFields()
        if each.DESCRIPTOR.full_name not in _JSON_TYPES:
            count += _count_shown_fields(each.DESCRIPTOR) + sum(1 for field, _ in fields if field.has_presence)
        for field, value in fields:
            if field.is_repeated:
                count += len(value)
            if count > most:
                return True
            if (kind := field.message_type) is not None:
                stack += _list_messages(field, kind, value)
    return count > most


@lru_cache(maxsize=_MAX_METHODS)
def _count_shown_fields(descriptor: Descriptor) -> int:
    """Count the fields that JSON shows whether or not they are set."""
    return sum(1 for field in descriptor.fields if not field.has_presence)


def _list_messages(field: FieldDescriptor, kind: Descriptor, value: Any) -> list[Message]:
    if not field.is_repeated:
        return [value]
    if not kind.GetOptions().map_entry:
        return list(value)
    is_message = kind.fields_by_name["value"].message_type is not None
    return list(value.values()) if is_message else []


def _build_metadata(tool: GrpcTool, context: ToolContext) -> list[tuple[str, str]]:
    headers: dict[str, str] = {"idempotency-key": context.key}
    if context.traceparent is not None:
        headers["traceparent"] = context.traceparent
    if tool.request.credential is not None:
        if context.credential is None:
            raise CredentialMissing(f"{tool.contract.full_name} was called without its credential")
        add_credential(tool.request.credential, context.credential.reveal(), headers, [])
    return [(name.lower(), value) for name, value in headers.items()]


def _build_problem(tool: GrpcTool, error: grpc.aio.AioRpcError) -> Problem:
    """Build the problem that a status means. The service's own words are redacted."""
    code, service = error.code(), tool.service
    is_read = tool.contract.mutation_class is MutationClass.READ
    text = error.details() or ""
    match code:
        case grpc.StatusCode.UNAUTHENTICATED if tool.request.credential is not None:
            return CredentialExpired(
                f"the service {service} rejected the credential (UNAUTHENTICATED)",
                nothing_happened=True,
                is_unknown=True,
            )
        case grpc.StatusCode.UNAUTHENTICATED:
            return CredentialMissing(
                f"the service {service} requires a credential (UNAUTHENTICATED)",
                advice="Ask the operator to set credential and security for this service under [[services]].",
                nothing_happened=True,
                is_unknown=True,
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED if any(each in text for each in _TOO_LARGE):
            limit = ResourceLimitExceeded(
                f"the answer of the service {service} is larger than max_response_bytes, or its metadata is larger "
                "than 16 KB"
            )
            # The answer was not read, so it may be a success.
            return limit if is_read else OutcomeUnknown(f"{limit.message}; it is unknown whether the service acted")
        case grpc.StatusCode.RESOURCE_EXHAUSTED if not is_safe_to_repeat(tool.contract):
            # It is not only the status of rate limits: a disk may be full after half of the work.
            return OutcomeUnknown(
                f"the service {service} lacks a resource or limits the rate of calls (RESOURCE_EXHAUSTED); it is "
                "unknown whether it acted"
            )
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return UpstreamRateLimited(f"the service {service} limits the rate of calls (RESOURCE_EXHAUSTED)")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return UpstreamTimeout(f"the service {service} timed out (DEADLINE_EXCEEDED)")
        case _ if code in _HTTP_STATUSES and code is not grpc.StatusCode.ABORTED:
            return UpstreamUnavailable(f"the service {service} failed ({code.name})")
        case _:
            words, is_redacted = _shorten(text)
    problem = ToolFailed(
        f"the service {service} refused the request ({code.name}){': ' if words else ''}{words}",
        details={"status": code.name},
        nothing_happened=is_read,
    )
    return problem.replace(is_redacted=is_redacted)


def _shorten(text: str) -> tuple[str, bool]:
    """Redact and shorten a text, and tell whether something was hidden in it."""
    searched_text = text.strip()[:_LONGEST_SEARCHED]
    # Redacted before it is cut: what remains of a secret may not look like one.
    visible_text = redact_error_text(searched_text)
    return visible_text[:_LONGEST_MESSAGE], visible_text != searched_text
