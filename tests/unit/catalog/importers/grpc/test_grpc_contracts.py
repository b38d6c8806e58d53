"""Methods of gRPC services become contracts, or say why not."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from deputize.catalog.importers.grpc.contracts import build_grpc_service
from deputize.catalog.importers.grpc.descriptor_set import parse_descriptor_set
from deputize.catalog.importers.openapi.contracts import BuiltService
from deputize.catalog.importers.openapi.document import InvalidDocument
from deputize.catalog.schemas import compile_schema
from deputize.core.contract.contract import Effects, UpstreamIdempotency
from tests.support.grpc_service import PROTO, SERVICE, compile_descriptors, make_grpc_settings

GET, SEND, DELETE, WATCH, BOX = (
    f"{SERVICE}/{name}" for name in ("GetParcel", "SendParcel", "DeleteParcel", "WatchParcels", "OpenBox")
)
pytestmark = pytest.mark.requirement("EXE-1")


def build(folder: Path, text: str = PROTO, **settings: Any) -> BuiltService:
    document = compile_descriptors(folder, text)
    return build_grpc_service(make_grpc_settings(document, **settings), parse_descriptor_set(document.read_bytes()))


def test_unary_methods_become_contracts_and_others_say_why_not(tmp_path: Path) -> None:
    built = build(tmp_path)
    assert {key: each.full_name for key, each in built.contracts.items()} == {
        GET: "parcels.get_parcel",
        SEND: "parcels.send_parcel",
        DELETE: "parcels.delete_parcel",
    }
    assert {each.key: each.reason for each in built.refusals} == {
        WATCH: "it streams, and a call has one request and one response",
        BOX: "its messages contain google.protobuf.Any, which can hold anything",
    }


def test_only_what_is_declared_without_side_effects_reads(tmp_path: Path) -> None:
    contracts = build(tmp_path).contracts
    assert {key: each.effects for key, each in contracts.items()} == {
        GET: Effects.READ,
        SEND: Effects.DESTRUCTIVE,
        DELETE: Effects.DESTRUCTIVE,
    }
    assert contracts[DELETE].idempotency.upstream is UpstreamIdempotency.CANNOT
    changed = build(tmp_path, writes=("*/SendParcel",), destructive=("*/GetParcel",), repeatable=("*/SendParcel",))
    assert changed.contracts[SEND].effects is Effects.WRITE
    assert changed.contracts[SEND].idempotency.upstream is UpstreamIdempotency.DEDUPLICATES
    assert changed.contracts[GET].effects is Effects.DESTRUCTIVE


def test_the_settings_say_how_a_method_survives_a_failing_service(tmp_path: Path) -> None:
    contracts = build(
        tmp_path, breaker={"failure_threshold": 2}, retry={"*/Get*": {"max_attempts": 9}},
        freshness={"*": {"max_age_seconds": 60}},
    ).contracts  # fmt: skip
    assert {each.breaker.failure_threshold for each in contracts.values()} == {2}
    assert [contracts[key].retry.max_attempts for key in (GET, SEND)] == [9, 3]
    assert [contracts[key].freshness is not None for key in (GET, SEND)] == [True, False]


def test_a_contract_describes_its_message_in_json(tmp_path: Path) -> None:
    contract = build(tmp_path).contracts[SEND]
    check = compile_schema(contract.input_schema)
    parcel = {
        "id": "1", "grams": "9007199254740993", "size": "LARGE", "notes": ["a"], "stamps": {"x": 1}, "seal": "AAE=",
        "sent_at": "2026-01-01T00:00:00Z", "euros": 1.5, "address": {"street": "a", "forward_to": {"street": "b"}},
    }  # fmt: skip
    assert check.is_valid(parcel)
    for wrong in ({"size": "HUGE"}, {"grams": 1.5}, {"notes": "a"}, {"unknown": 1}, {"stamps": {"x": 2**31}}):
        assert not check.is_valid({**parcel, **wrong}), wrong
    assert contract.input_schema["properties"]["id"]["description"] == "The number on its label."
    assert build(tmp_path).contracts[GET].description == "Read one parcel by its number."


def test_a_contract_stays_the_same_while_other_methods_change(tmp_path: Path) -> None:
    before = build(tmp_path).contracts[GET]
    more = PROTO.replace("message Box {", "message Crate { int32 id = 1; }\nmessage Box {")
    assert build(tmp_path, more).contracts[GET].digest == before.digest
    assert build(tmp_path, PROTO.replace("string voucher = 10", "string voucher = 11")).contracts[GET].digest != (
        before.digest
    )


@pytest.mark.parametrize("content", [b"", b"\xff\xff", b"openapi: 3.0.0\n", b"\n\x02\x0a\x00"])
def test_what_is_no_descriptor_set_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidDocument):
        parse_descriptor_set(content)


def test_a_descriptor_set_without_its_imports_is_refused(tmp_path: Path) -> None:
    files = FileDescriptorSet.FromString(compile_descriptors(tmp_path).read_bytes())
    del files.file[0]
    with pytest.raises(InvalidDocument, match="--include_imports"):
        parse_descriptor_set(files.SerializeToString())
