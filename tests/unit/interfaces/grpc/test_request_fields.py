"""What a message costs before it is refused."""

import time
from collections.abc import Callable

import pytest

from deputize.core.errors import MalformedRequest
from deputize.interfaces.grpc import deputize_v1_pb2 as messages
from deputize.interfaces.grpc.request_fields import parse_message, parse_metadata

# As large as a message may be, of fields that are as small as possible.
_SIZE = 1_048_576


def measure_cpu(act: Callable[[], object]) -> float:
    seconds = []
    for _ in range(5):
        started_at = time.process_time()
        act()
        seconds.append(time.process_time() - started_at)
    return min(seconds)


@pytest.mark.parametrize(
    "field",
    [b"\xf8\x01\x01", b"\xfa\x01\x00", b"\xfb\x01\xfc\x01", b"\x52\x02\x78\x01"],
    ids=["number", "text", "group", "within-a-message"],
)
def test_a_flood_of_unknown_fields_costs_little_more_than_its_parsing(field: bytes) -> None:
    data = field * (_SIZE // len(field))

    def refuse() -> None:
        with pytest.raises(MalformedRequest, match="has no field"):
            parse_message(messages.CallRequest, data)

    assert measure_cpu(refuse) < 20 * measure_cpu(lambda: messages.CallRequest.FromString(data))


@pytest.mark.parametrize(
    ("data", "named"),
    [(b"\xf8\x01\x01", "CallRequest has no field 31"), (b"\x52\x02\x78\x01", "Callback has no field 15")],
)
def test_an_unknown_field_is_named(data: bytes, named: str) -> None:
    with pytest.raises(MalformedRequest, match=named):
        parse_message(messages.CallRequest, data)


def test_metadata_stay_as_they_were_sent() -> None:
    texts = ["\u2603", "\u2602", "\xe9", "?"]
    values = {parse_metadata([("idempotency-key", each)])["idempotency-key"] for each in texts}
    assert values == {each.encode() for each in texts}
