"""Commands that are written by hand: what eight lines of a manifest become, and what is refused."""

from typing import Any

import orjson
import pytest

from deputize.catalog.importers.command_manifest import build_command_manifest, parse_command_manifest
from deputize.catalog.importers.openapi.document import InvalidDocument
from deputize.core.contract.contract import Contract, Effects
from tests.support.command_manifest import make_command, make_command_service

pytestmark = pytest.mark.requirement("EXE-1")
READABLE = [{"path": "/srv/shop"}]
WRITABLE = [{"path": "/srv/shop", "write": True}]


def build(tool: dict[str, Any]) -> Any:
    return build_command_manifest(make_command_service(), parse_command_manifest(orjson.dumps(tool)))


def build_contract(tool: dict[str, Any]) -> Contract:
    built = build(tool)
    assert not built.refusals, built.refusals
    contract: Contract = built.contracts["run"]
    return contract


def test_a_few_lines_are_a_contract() -> None:
    contract = build_contract(make_command("run", "--file={path}", "{city}", properties=("path", "city", "text"),
                                           stdin="text", exit_codes={"1": "ok"}))  # fmt: skip
    command = contract.handler.command
    assert command is not None
    assert (contract.full_name, contract.effects, contract.kind) == ("lab.run", Effects.READ, "shell_command")
    assert (command.arguments, command.stdin, command.exit_codes) == (("--file={path}", "{city}"), "text", {"1": "ok"})
    assert contract.sandbox is not None
    assert (contract.sandbox.tier, contract.requires_user_interaction) == (0, False)
    assert contract.input_schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("fields", "tier", "effects"),
    [
        ({}, 0, Effects.READ),
        ({"folders": READABLE}, 1, Effects.READ),
        ({"folders": READABLE, "network": {"allowed_domains": ["api.example"]}}, 2, Effects.DESTRUCTIVE),
        ({"network": {"allowed_domains": ["api.example"]}, "effects": "read"}, 2, Effects.READ),
        ({"folders": WRITABLE}, 3, Effects.DESTRUCTIVE),
        ({"sandbox": {"tier": 3}, "effects": "write"}, 3, Effects.WRITE),
    ],
)
def test_the_tier_follows_from_what_the_program_is_given(fields: dict[str, Any], tier: int, effects: Effects) -> None:
    contract = build_contract(make_command("run", **fields))
    assert contract.sandbox is not None
    assert (contract.sandbox.tier, contract.effects) == (tier, effects)
    # What may do anything is approved each time.
    assert contract.requires_user_interaction is (tier == 3)


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        (make_command("run", "{path}"), "not in input_schema"),
        (make_command("run", "{a}{b}", properties=("a", "b")), "more than one placeholder"),
        (make_command("run", "{a}.txt", properties=("a",)), "something after it"),
        (make_command("run", "-o{a}", properties=("a",)), "write an option with ="),
        (make_command("run", properties=("a",)), "goes nowhere"),
        (make_command("run", "{a}", input_schema={"properties": {"a": {"type": "array"}}}), "one word of a command"),
        (make_command("run", stdin="text"), "is text, which is not in input_schema"),
        (make_command("run", folders=WRITABLE, sandbox={"tier": 1}), "need tier 3"),
        (make_command("run", folders=WRITABLE, requires_user_interaction=False), "is not set"),
        (make_command("run", folders=WRITABLE, effects="read"), "may change a folder"),
        (make_command("run", effects="write"), "nothing can be changed"),
        (make_command("run", sandbox={"tier": 3, "permissions": ["files:all"]}, effects="write"), "remove them"),
        (make_command("run", network={"allowed_domains": ["*.example"]}), "name each host"),
        (
            make_command("run", network={"allowed_domains": ["a.example"]}, sandbox={"backend": "gvisor"}),
            "reach no hosts",
        ),
        (make_command("run", program="wc"), "program"),
        (make_command("run", exit_codes={"1": "fine"}), "exit_codes"),
        (make_command("run", exit_codes={"137": "ok"}), "exit_codes"),
        (make_command("run", handler={"driver": "python"}), "its handler follows from the settings"),
        ({**make_command("run"), "name": "other.run"}, "write lab.run"),
    ],
)
def test_what_is_wrong_with_a_command_is_said(tool: dict[str, Any], reason: str) -> None:
    built = build(tool)
    assert not built.contracts
    assert reason in built.refusals[0].reason


def test_a_command_is_a_list_and_no_line_of_a_shell() -> None:
    with pytest.raises(InvalidDocument, match=r"command: \[PROGRAM"):
        parse_command_manifest(orjson.dumps({**make_command("run"), "command": "wc --words | sort"}))


@pytest.mark.parametrize(
    "field", [{"url": "https://shop.example"}, {"credential": "vault", "secret": "shop"}, {"reads": ("*",)}]
)
def test_settings_of_other_services_are_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"remove it|declares effects"):
        make_command_service(**field)
