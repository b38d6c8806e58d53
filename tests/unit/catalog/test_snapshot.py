"""Test snapshots: version selection, refusals, and that refusals reveal nothing about hidden tools."""

import hashlib
from datetime import UTC, datetime

import pytest

from deputize.catalog.snapshot import TenantTools, ToolEntry, ToolVersion
from deputize.core.clock import Clock
from deputize.core.contract.contract import LifecycleState as S
from deputize.core.contract.deprecation import DeprecationNotice
from deputize.core.errors import (
    InternalError,
    MalformedRequest,
    Problem,
    ToolDisabled,
    ToolNotFound,
    ToolRequiresSetup,
    ToolRetired,
    VersionNotFound,
)
from tests.support.contracts import make_contract, make_snapshot, make_version


def make_crm_version(version: str, state: S = S.AVAILABLE, **changes: object) -> ToolVersion:
    return make_version(make_contract(version=version, **changes), state)


SIDE_BY_SIDE = make_snapshot(
    make_crm_version("1.0.0"),
    make_crm_version("1.2.0"),
    make_crm_version("1.3.0", S.DEPRECATED),
    make_crm_version("2.0.0"),
    make_crm_version("3.0.0-rc.1"),
    make_crm_version("0.9.0", S.RETIRED),
)


@pytest.mark.requirement("CON-8")
@pytest.mark.parametrize(
    ("spec", "version"),
    [("latest", "2.0.0"), ("LATEST", "2.0.0"), ("^1", "1.2.0"), ("1.x", "1.2.0"), ("~1.0.0", "1.0.0"), ("*", "2.0.0"),
     ("1.3.0", "1.3.0"), ("~1.3", "1.3.0"), ("3.0.0-rc.1", "3.0.0-rc.1"), ("3.x", "3.0.0-rc.1")],
)  # fmt: skip
def test_versions_live_side_by_side_and_resolve(spec: str, version: str) -> None:
    assert SIDE_BY_SIDE.resolve_version("crm.get_user", spec).version == version


@pytest.mark.requirement("CON-8", "GOV-1")
@pytest.mark.parametrize(
    ("spec", "ranges", "version"),
    [("latest", ["^1"], "1.2.0"), ("*", ["~1.0"], "1.0.0"), ("^1", ["*"], "1.2.0"), ("latest", ["1.3.0"], "1.3.0"),
     ("latest", ["0.1.x", "^1"], "1.2.0"), ("2.0.0", ["^1"], "2.0.0"), ("^2", ["^1"], "2.0.0")],
)  # fmt: skip
def test_a_range_selects_the_best_version_that_the_token_covers(spec: str, ranges: list[str], version: str) -> None:
    resolved_version = SIDE_BY_SIDE.resolve_version("crm.get_user", spec, list_ranges=lambda _: ranges)
    assert resolved_version.version == version


@pytest.mark.requirement("CON-8")
def test_a_version_is_refused_from_its_removal_date_on() -> None:
    removal_at, now_ms = datetime(2030, 4, 1, tzinfo=UTC), [0]
    notice = DeprecationNotice(deprecated_at=removal_at, removal_at=removal_at, successor="crm.find")
    contracts = [make_contract(version=number) for number in ("1.0.0", "1.1.0")]
    old, new = (make_version(each, S.DEPRECATED) for each in contracts)
    versions = {"1.0.0": old.copy_with_state(S.DEPRECATED, notice=notice), "1.1.0": new}
    entry = ToolEntry.from_versions("crm.get_user", versions, Clock(epoch_ms=lambda: now_ms[0]))
    tools = TenantTools(tenant="dev").replace_entries(1, {"crm.get_user": entry})
    removal_ms = int(removal_at.timestamp() * 1000)
    for now_ms[0], expected in ((removal_ms - 1, "1.0.0"), (removal_ms, "1.1.0")):
        ranked = entry.rank_versions("~1.0") or entry.rank_versions("^1")
        assert (ranked[0].version, tools.count_removed(now_ms[0])) == (expected, int(expected == "1.1.0"))
    assert entry.latest is new
    for spec in ("1.0.0", "~1.0"):
        refusal = resolve_error(tools, spec)
        assert isinstance(refusal, ToolRetired)
        assert refusal.details["replacement"] == "crm.find"
        assert refusal.details["deprecation"]["removal_date"] == "2030-04-01T00:00:00Z"


@pytest.mark.requirement("CON-1")
def test_a_tool_answers_to_its_name_its_outward_spelling_and_its_aliases() -> None:
    tools = make_snapshot(make_version(make_contract(aliases=["users.find"])))
    for name in ("crm.get_user", "crm__get_user", "users.find", "users__find"):
        assert tools.resolve_version(name).tool.name == "crm.get_user"
    assert tools.find_owner("users.find") == "crm.get_user"
    assert tools.find_owner("users.other") is None


def resolve_error(tools: TenantTools, spec: str) -> Problem:
    with pytest.raises(Problem) as refused:
        tools.resolve_version("crm.get_user", spec)
    return refused.value


@pytest.mark.requirement("CON-10")
def test_each_state_refuses_in_its_own_way() -> None:
    replaced = make_crm_version("1.0.0", S.RETIRED, life={"replacement": "crm.find_user"})
    tools = make_snapshot(
        replaced,
        make_crm_version("2.0.0", S.DISABLED),
        make_crm_version("3.0.0", S.REQUIRES_SETUP),
        make_crm_version("4.0.0", S.DRAFT),
    )
    retired = resolve_error(tools, "1.0.0")
    assert isinstance(retired, ToolRetired)
    assert retired.details["replacement"] == "crm.find_user"
    assert isinstance(resolve_error(tools, "1.x"), ToolRetired)
    assert isinstance(resolve_error(tools, "2.0.0"), ToolDisabled)
    assert isinstance(resolve_error(tools, "^3"), ToolRequiresSetup)
    assert isinstance(resolve_error(tools, "4.0.0"), VersionNotFound)
    assert isinstance(resolve_error(tools, "9.9.9"), VersionNotFound)
    assert isinstance(resolve_error(tools, "newest"), MalformedRequest)


@pytest.mark.requirement("CON-10")
def test_deferred_and_deprecated_versions_can_still_be_called() -> None:
    assert make_snapshot(make_crm_version("1.0.0", S.DEFERRED)).resolve_version("crm.get_user").version == "1.0.0"
    assert make_snapshot(make_crm_version("1.0.0", S.DEPRECATED)).resolve_version("crm.get_user").version == "1.0.0"


def test_a_missing_version_lists_the_ones_there_are() -> None:
    assert resolve_error(SIDE_BY_SIDE, "7.x").details["versions"] == ["3.0.0-rc.1", "2.0.0", "1.3.0", "1.2.0", "1.0.0"]


def lookup_error(tools: TenantTools, name: str, hidden_name: str = "") -> ToolNotFound:
    with pytest.raises(ToolNotFound) as refused:
        tools.resolve_version(name, visible=lambda each: each != hidden_name)
    return refused.value


def test_a_typo_hears_what_was_probably_meant() -> None:
    tools = make_snapshot(make_crm_version("1.0.0"), make_version(make_contract(namespace="mail", name="send")))
    assert lookup_error(tools, "crm.get_usr").details["did_you_mean"] == ["crm.get_user"]
    assert lookup_error(tools, "crn.get_user").details["did_you_mean"] == ["crm.get_user"]
    assert lookup_error(tools, "crm__get_usr").details["did_you_mean"] == ["crm.get_user"]
    assert lookup_error(tools, "get_user").message == "there is no tool get_user; did you mean crm.get_user?"
    assert lookup_error(tools, "weather.now").details["did_you_mean"] == []


@pytest.mark.requirement("GOV-1")
@pytest.mark.requirement("REG-3")
def test_what_is_hidden_takes_nobodys_place_among_the_suggestions() -> None:
    shown = make_version(make_contract(namespace="crmx", name="refunds"))
    hidden = [
        make_version(make_contract(namespace=each, name="pay")) for each in ("crmz", "crmza", "crmzb", "crmzc", "crmzd")
    ]
    for tools in (make_snapshot(shown), make_snapshot(shown, *hidden), make_snapshot(*hidden, shown)):
        with pytest.raises(ToolNotFound) as refused:
            tools.resolve_version("crmz.refunds1", visible=lambda name: name == "crmx.refunds")
        assert refused.value.details["did_you_mean"] == ["crmx.refunds"]


def test_a_hidden_tool_and_one_that_is_not_there_are_refused_alike() -> None:
    there = make_snapshot(
        make_crm_version("1.0.0", aliases=["crm.find"]), make_version(make_contract(name="get_users"))
    )
    not_there = make_snapshot(make_version(make_contract(name="get_users")))
    drafted = make_snapshot(make_crm_version("1.0.0", S.DRAFT), make_version(make_contract(name="get_users")))
    for name in ("crm.get_user", "crm__get_user", "crm.find", "crm.get_usr"):
        expected = lookup_error(not_there, name)
        for tools in (there, drafted):
            found = lookup_error(tools, name, hidden_name="crm.get_user")
            assert (found.message, found.details, found.advice) == (expected.message, expected.details, expected.advice)


def test_a_changed_tool_is_new_and_every_other_is_shared() -> None:
    before = make_snapshot(make_crm_version("1.0.0", aliases=["crm.find"]), make_version(make_contract(name="other")))
    moved = make_snapshot(make_crm_version("1.0.0", S.RETIRED, aliases=["crm.find"])).tools
    after = before.replace_entries(2, moved)
    assert after.epoch == 2
    assert after.tools["crm.other"] is before.tools["crm.other"]
    assert after.find_entry("crm.find") is None
    assert before.find_entry("crm.find") is not None


def test_a_version_is_compiled_once_for_everyone_who_holds_it() -> None:
    one, other = make_crm_version("1.0.0"), make_crm_version("1.0.0")
    assert one.tool is other.tool
    assert one.copy_with_state(S.DISABLED).tool is one.tool


def test_bytes_that_do_not_match_their_digest_are_not_trusted() -> None:
    good = make_crm_version("1.0.7")
    raw = good.raw.replace(b"Look up", b"Destroy")
    forged = ToolVersion(version="1.0.7", digest=good.digest, raw=raw, state=S.AVAILABLE)
    with pytest.raises(InternalError, match="digest"):
        _ = forged.tool


def test_a_contract_of_another_release_says_what_to_do() -> None:
    raw = make_crm_version("1.0.8").raw.replace(b'"aliases"', b'"aliasses"')
    digest = "sha256:" + hashlib.sha256(raw).hexdigest()
    with pytest.raises(ToolRequiresSetup, match="incompatible release"):
        _ = ToolVersion(version="1.0.8", digest=digest, raw=raw, state=S.AVAILABLE).tool


def test_a_tool_of_a_file_that_is_not_loaded_is_named_as_such() -> None:
    tools = TenantTools(
        tenant="dev", unloaded_tools={"stock.": "stock.py:3: invalid syntax", "crm.add": "undo is missing"}
    )
    assert lookup_error(tools, "crm__add").message == "crm__add is not loaded: undo is missing"
    assert lookup_error(tools, "stock.count").message == "stock.count is not loaded: stock.py:3: invalid syntax"
    assert lookup_error(tools, "crm.find").message == "there is no tool crm.find"
    assert lookup_error(tools, "crm.add", hidden_name="crm.add").message == "there is no tool crm.add"
