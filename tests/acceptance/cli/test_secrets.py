"""`deputize secrets` as a person uses it; the value is piped in, and never comes out."""

import re
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import list_files_containing, run_as_operator, run_deputize

pytestmark = [pytest.mark.requirement("GOV-7"), pytest.mark.nightly]
VALUE = "canary-77e0ab31"


def test_a_secret_is_set_from_a_pipe_listed_by_name_and_deleted(shop_project: Path) -> None:
    empty = run_deputize("secrets", "list", folder=shop_project)
    assert "No secrets yet" in empty.out
    put = run_as_operator("secrets", "set", "crm/api-key", folder=shop_project, stdin=VALUE + "\n")
    again = run_as_operator("secrets", "set", "crm/api-key", "--json", folder=shop_project, stdin=VALUE)
    listed = run_deputize("secrets", "list", folder=shop_project)
    as_json = run_deputize("secrets", "list", "--json", folder=shop_project)
    deleted = run_deputize("secrets", "delete", "crm/api-key", folder=shop_project)
    gone = run_deputize("secrets", "delete", "crm/api-key", folder=shop_project)
    assert [done.code for done in (put, again, listed, as_json, deleted, gone)] == [0, 0, 0, 0, 0, 1]
    assert put.out == "✓ Stored crm/api-key; the next call that needs it uses it\n"
    assert again.json == {"name": "crm/api-key", "put": "replaced"}
    assert re.search(r"crm/api-key +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +developer", listed.out)
    assert [each["name"] for each in as_json.json["secrets"]] == ["crm/api-key"]
    assert "E3602" in gone.err
    assert "Run deputize secrets list to see all secrets" in gone.err
    assert not any(VALUE in done.output for done in (put, again, listed, as_json, deleted, gone))


def test_secret_errors_do_not_show_the_value(shop_project: Path) -> None:
    nothing = run_deputize("secrets", "set", "crm/api-key", folder=shop_project, stdin="\n")
    argument = run_deputize("secrets", "set", "crm/api-key", VALUE, folder=shop_project, stdin="")
    misnamed = run_deputize("secrets", "set", "Crm Key", folder=shop_project, stdin=VALUE)
    assert (nothing.code, argument.code, misnamed.code) == (2, 2, 1)
    assert "No value was piped in" in nothing.err
    assert "name must be lower case letters, digits, - and _" in misnamed.err
    short = run_deputize("secrets", "set", "crm/api-key", folder=shop_project, stdin="short")
    assert (short.code, "value must have 8 to 65536 characters" in short.err) == (1, True)
    assert VALUE not in nothing.output + misnamed.output


def test_the_gateways_own_files_do_not_hold_it(shop_project: Path) -> None:
    run_as_operator("secrets", "set", "crm/other", folder=shop_project, stdin=VALUE)
    assert list_files_containing(shop_project, VALUE) == []
