"""`deputize switch` as a person uses it: off, listed with its reason, refused by name, and on again."""

import re
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import run_as_operator, run_deputize

pytestmark = [pytest.mark.requirement("GOV-8"), pytest.mark.nightly]


def test_a_tool_is_switched_off_listed_and_switched_on(shop_project: Path) -> None:
    assert run_deputize("switch", "list", folder=shop_project).out == "Nothing is switched off.\n"
    off = run_deputize("switch", "off", "tool", "hello.greet", "--reason", "it is rude", folder=shop_project)
    assert off.out == "✓ tool hello.greet is off. Switch it on: deputize switch on tool hello.greet\n"
    refused = run_deputize("call", "hello.greet", "name=Ana", folder=shop_project)
    assert refused.code == 1
    assert "developer turned off the tool hello.greet: it is rude" in refused.err
    assert "rule: switch:tool" in refused.err
    listed = run_deputize("switch", "list", folder=shop_project)
    assert re.search(r"tool +hello\.greet +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +developer +it is rude", listed.out)
    as_json = run_deputize("switch", "list", "--json", folder=shop_project).json["switches"]
    assert [(each["kind"], each["value"]) for each in as_json] == [("tool", "hello.greet")]
    on = run_as_operator("switch", "on", "tool", "hello.greet", "--json", folder=shop_project)
    assert (on.json["kind"], on.json["value"], on.json["off"]) == ("tool", "hello.greet", False)
    assert run_deputize("call", "hello.greet", "name=Ana", folder=shop_project).code == 0


def test_the_whole_tenant_goes_off_and_its_owner_turns_it_on(shop_project: Path) -> None:
    off = run_deputize("switch", "off", "tenant", folder=shop_project)
    assert off.out == "✓ tenant dev is off. Switch it on: deputize switch on tenant\n"
    assert run_deputize("call", "hello.greet", "name=Ana", folder=shop_project).code == 1
    assert run_as_operator("switch", "on", "tenant", folder=shop_project).out == "✓ tenant dev is on\n"
    assert run_deputize("call", "hello.greet", "name=Ana", folder=shop_project).code == 0


def test_switch_errors_are_readable(shop_project: Path) -> None:
    nameless = run_deputize("switch", "off", "agent", folder=shop_project)
    assert (nameless.code, "The agent is not named" in nameless.err) == (2, True)
    unknown = run_deputize("switch", "off", "tool", "hello.gret", folder=shop_project)
    assert (unknown.code, "hello.greet" in unknown.err or "Tool not found" in unknown.err) == (1, True)
    assert run_deputize("switch", "off", "user", "ana", folder=shop_project).code == 2
