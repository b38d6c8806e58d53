"""`deputize switch` as a person uses it: off, listed with its reason, refused by name, and on again."""

import re
from pathlib import Path

import pytest

from tests.acceptance.cli.shell import deputize

pytestmark = pytest.mark.requirement("GOV-8")


def test_a_tool_is_switched_off_listed_and_switched_on(shop: Path) -> None:
    assert deputize("switch", "list", folder=shop).out == "Nothing is switched off.\n"
    off = deputize("switch", "off", "tool", "hello.greet", "--reason", "it is rude", folder=shop)
    assert off.out == "✓ the tool hello.greet is off; turn it on with deputize switch on tool hello.greet\n"
    refused = deputize("call", "hello.greet", "name=Ana", folder=shop)
    assert refused.code == 1
    assert "developer switched off the tool hello.greet: it is rude" in refused.err
    assert "rule: switch:tool" in refused.err
    listed = deputize("switch", "list", folder=shop)
    assert re.search(r"tool +hello\.greet +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +developer +it is rude", listed.out)
    as_json = deputize("switch", "list", "--json", folder=shop).json["switches"]
    assert [(each["kind"], each["value"]) for each in as_json] == [("tool", "hello.greet")]
    on = deputize("switch", "on", "tool", "hello.greet", "--json", folder=shop)
    assert (on.json["kind"], on.json["value"], on.json["off"]) == ("tool", "hello.greet", False)
    assert deputize("call", "hello.greet", "name=Ana", folder=shop).code == 0


def test_the_whole_tenant_goes_off_and_its_owner_turns_it_on(shop: Path) -> None:
    off = deputize("switch", "off", "tenant", folder=shop)
    assert off.out == "✓ the tenant dev is off; turn it on with deputize switch on tenant\n"
    assert deputize("call", "hello.greet", "name=Ana", folder=shop).code == 1
    assert deputize("switch", "on", "tenant", folder=shop).out == "✓ the tenant dev is on\n"
    assert deputize("call", "hello.greet", "name=Ana", folder=shop).code == 0


def test_mistakes_are_told(shop: Path) -> None:
    nameless = deputize("switch", "off", "agent", folder=shop)
    assert (nameless.code, "Which agent?" in nameless.err) == (2, True)
    unknown = deputize("switch", "off", "tool", "hello.gret", folder=shop)
    assert (unknown.code, "hello.greet" in unknown.err or "No such tool" in unknown.err) == (1, True)
    assert deputize("switch", "off", "user", "ana", folder=shop).code == 2
