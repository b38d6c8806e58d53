"""`deputize secrets` as a person uses it; the value is piped in, and never comes out."""

import re
from pathlib import Path

import pytest

from tests.acceptance.cli.shell import deputize

pytestmark = pytest.mark.requirement("GOV-7")
VALUE = "canary-77e0ab31"


def test_a_secret_is_set_from_a_pipe_listed_by_name_and_deleted(shop: Path) -> None:
    empty = deputize("secrets", "list", folder=shop)
    assert "No secrets yet" in empty.out
    put = deputize("secrets", "set", "crm/api-key", folder=shop, typed=VALUE + "\n")
    again = deputize("secrets", "set", "crm/api-key", "--json", folder=shop, typed=VALUE)
    listed = deputize("secrets", "list", folder=shop)
    as_json = deputize("secrets", "list", "--json", folder=shop)
    deleted = deputize("secrets", "delete", "crm/api-key", folder=shop)
    gone = deputize("secrets", "delete", "crm/api-key", folder=shop)
    assert [done.code for done in (put, again, listed, as_json, deleted, gone)] == [0, 0, 0, 0, 0, 1]
    assert put.out == "✓ crm/api-key is there; the next call that needs it gets it\n"
    assert again.json == {"name": "crm/api-key", "put": "replaced"}
    assert re.search(r"crm/api-key +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +developer", listed.out)
    assert [each["name"] for each in as_json.json["secrets"]] == ["crm/api-key"]
    assert "E3602" in gone.err
    assert "deputize secrets list shows those there are" in gone.err
    assert not any(VALUE in done.said for done in (put, again, listed, as_json, deleted, gone))


def test_mistakes_are_told_without_the_value(shop: Path) -> None:
    nothing = deputize("secrets", "set", "crm/api-key", folder=shop, typed="\n")
    argument = deputize("secrets", "set", "crm/api-key", VALUE, folder=shop, typed="")
    misnamed = deputize("secrets", "set", "Crm Key", folder=shop, typed=VALUE)
    assert (nothing.code, argument.code, misnamed.code) == (2, 2, 1)
    assert "Nothing was piped in" in nothing.err
    assert "name is spelt in small letters, digits, - and _" in misnamed.err
    short = deputize("secrets", "set", "crm/api-key", folder=shop, typed="short")
    assert (short.code, "value must have 8 characters or more" in short.err) == (1, True)
    assert VALUE not in nothing.said + misnamed.said


def test_the_gateways_own_files_do_not_hold_it(shop: Path) -> None:
    deputize("secrets", "set", "crm/other", folder=shop, typed=VALUE)
    holding = [path for path in shop.rglob("*") if path.is_file() and VALUE.encode() in path.read_bytes()]
    assert holding == []
