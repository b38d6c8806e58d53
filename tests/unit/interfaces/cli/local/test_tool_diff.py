"""Two versions of a tool are compared for their callers, from files and as a gateway shows them."""

import pytest

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.tool_diff import diff_contracts, diff_files, parse_shown_contract
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("CON-8")
BREAK = {"auth": {"scopes": ["crm:read", "crm:more"]}}


def test_a_number_that_fits_has_no_refusal() -> None:
    diff = diff_contracts(make_contract(), make_contract(version="1.1.0", tags=["new"]))
    assert (diff.level, diff.announced_level, diff.refusal) == ("minor", "minor", None)
    assert diff.to_json()["changes"] == [{"level": "minor", "path": "/tags", "reason": "is different"}]


def test_a_refusal_names_the_number_that_fits() -> None:
    assert "2.0.0" in str(diff_contracts(make_contract(), make_contract(version="1.1.0", **BREAK)).refusal)
    undeclared = diff_contracts(make_contract(), make_contract(version="2.0.0", **BREAK))
    assert str(undeclared.refusal).startswith("breaking_changes is false")


def test_the_same_number_fits_only_if_nothing_changed() -> None:
    same = diff_contracts(make_contract(), make_contract())
    assert (same.level, same.announced_level, same.refusal) == ("none", "none", None)
    assert "1.0.1" in str(diff_contracts(make_contract(), make_contract(title="Another")).refusal)


def test_the_order_of_versions_matters() -> None:
    with pytest.raises(ConfigError, match="name the old version first"):
        diff_contracts(make_contract(version="2.0.0"), make_contract())


def test_files_are_compared_by_the_newest_version_of_each_tool() -> None:
    old = [make_contract(version="1.0.0"), make_contract(version="1.1.0"), make_contract(name="gone")]
    new = [make_contract(version="1.2.0"), make_contract(name="fresh")]
    diffs, removed_names, new_names = diff_files(old, new)
    assert [(each.old, each.new) for each in diffs] == [("1.1.0", "1.2.0")]
    assert (removed_names, new_names) == (["crm.gone"], ["crm.fresh"])


def test_what_a_gateway_shows_is_compared_without_where_it_runs() -> None:
    shown = {"contract": make_contract().model_dump(mode="json", exclude={"handler"})}
    assert diff_contracts(parse_shown_contract(shown), parse_shown_contract(shown)).changes == ()
    for answer in ({}, {"contract": {"name": "crm"}}, {"contract": {**shown["contract"], "of_a_later_release": 1}}):
        with pytest.raises(ConfigError, match="release that the gateway runs"):
            parse_shown_contract(answer)
