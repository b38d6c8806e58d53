"""Round trips of generated tools and calls through every object of the standard, byte for byte."""

from typing import Any

import pytest

from deputize.catalog.exchange.agent_tool.call_mapping import RECORD_MAPPINGS, export_record, import_record
from deputize.catalog.exchange.agent_tool.object_kinds import ObjectKind, find_object_problems
from deputize.catalog.exchange.agent_tool.tool_document import export_tool_document, import_tool_document
from deputize.core.canonical import canonicalize
from deputize.core.contract.contract import Contract
from tests.support.generated_tools import ToolGenerator

TOOL_COUNT = 1000


def list_objects(document: dict[str, Any]) -> dict[ObjectKind, list[Any]]:
    """Every object of a tool's document, by kind; the parts of its declaration are objects, too."""
    declaration = document["tool_declaration"]
    objects = {kind: [document[kind]] for kind in ObjectKind if kind in document}
    objects[ObjectKind.TOOL_INPUT_CONTRACT] = [declaration["input_contract"]]
    objects[ObjectKind.TOOL_OUTPUT_CONTRACT] = [declaration["output_contract"]]
    objects[ObjectKind.TOOL_EXTERNAL_MAPPING] = declaration.get("external_mappings", [])
    return objects


@pytest.mark.nightly
@pytest.mark.requirement("CON-3")
def test_a_thousand_tools_come_back_with_the_same_digest_and_the_same_bytes() -> None:
    generator = ToolGenerator(14)
    kinds_seen: set[ObjectKind] = set()
    fields_seen: set[str] = set()
    for number in range(TOOL_COUNT):
        contract, state = generator.draw_contract(number), generator.draw_state()
        document = export_tool_document(contract, state)
        returned = import_tool_document(document)
        assert returned.contract.digest == contract.digest, number
        assert returned.lifecycle is state
        assert canonicalize(export_tool_document(returned.contract, state)) == canonicalize(document), number
        for kind, objects in list_objects(document).items():
            for each in objects:
                assert find_object_problems(kind, each) == [], (number, kind)
                kinds_seen.add(kind)
        for kind_name, record in generator.draw_call(contract).items():
            kind = ObjectKind(kind_name)
            kinds_seen.add(kind)
            written = export_record(kind, record)
            foreign = import_record(kind, written)
            assert foreign.differences == (), (number, kind)
            assert canonicalize(export_record(kind, foreign.record)) == canonicalize(written), (number, kind)
        fields_seen |= contract.model_fields_set
    assert kinds_seen == set(ObjectKind)
    # A flow has no handler, so no generated tool is one.
    assert fields_seen == set(Contract.model_fields) - {"flow"}


def test_every_kind_of_record_is_drawn() -> None:
    generator = ToolGenerator(0)
    assert {ObjectKind(kind) for kind in generator.draw_call(generator.draw_contract(0))} == set(RECORD_MAPPINGS)
