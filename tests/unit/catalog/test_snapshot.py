"""Snapshots: which version a caller gets, what a refusal says, and what it never gives away."""

import hashlib

import pytest

from deputize.catalog.snapshot import TenantTools, ToolVersion
from deputize.core.contract import LifecycleState as S
from deputize.core.errors import (
    Internal,
    Malformed,
    Problem,
    RequiresSetup,
    ToolDisabled,
    ToolNotFound,
    ToolRetired,
    VersionNotFound,
)
from tests.unit.catalog.contracts import contract, snapshot_of, version_of


def crm(version: str, state: S = S.AVAILABLE, **changes: object) -> ToolVersion:
    return version_of(contract(version=version, **changes), state)


SIDE_BY_SIDE = snapshot_of(
    crm("1.0.0"), crm("1.2.0"), crm("1.3.0", S.DEPRECATED), crm("2.0.0"), crm("3.0.0-rc.1"), crm("0.9.0", S.RETIRED)
)


@pytest.mark.requirement("CON-8")
@pytest.mark.parametrize(
    ("spec", "version"),
    [("latest", "2.0.0"), ("LATEST", "2.0.0"), ("^1", "1.2.0"), ("1.x", "1.2.0"), ("~1.0.0", "1.0.0"), ("*", "2.0.0"),
     ("1.3.0", "1.3.0"), ("~1.3", "1.3.0"), ("3.0.0-rc.1", "3.0.0-rc.1"), ("3.x", "3.0.0-rc.1")],
)  # fmt: skip
def test_versions_live_side_by_side_and_resolve(spec: str, version: str) -> None:
    assert SIDE_BY_SIDE.resolve("crm.get_user", spec).version == version


@pytest.mark.requirement("CON-1")
def test_a_tool_answers_to_its_name_its_outward_spelling_and_its_aliases() -> None:
    tools = snapshot_of(version_of(contract(aliases=["users.find"])))
    for name in ("crm.get_user", "crm__get_user", "users.find", "users__find"):
        assert tools.resolve(name).tool.name == "crm.get_user"
    assert tools.owner_of("users.find") == "crm.get_user"
    assert tools.owner_of("users.other") is None


def refusal(tools: TenantTools, spec: str) -> Problem:
    with pytest.raises(Problem) as refused:
        tools.resolve("crm.get_user", spec)
    return refused.value


@pytest.mark.requirement("CON-10")
def test_each_state_refuses_in_its_own_way() -> None:
    replaced = crm("1.0.0", S.RETIRED, life={"replacement": "crm.find_user"})
    tools = snapshot_of(replaced, crm("2.0.0", S.DISABLED), crm("3.0.0", S.REQUIRES_SETUP), crm("4.0.0", S.DRAFT))
    retired = refusal(tools, "1.0.0")
    assert isinstance(retired, ToolRetired)
    assert retired.details["replacement"] == "crm.find_user"
    assert isinstance(refusal(tools, "1.x"), ToolRetired)
    assert isinstance(refusal(tools, "2.0.0"), ToolDisabled)
    assert isinstance(refusal(tools, "^3"), RequiresSetup)
    assert isinstance(refusal(tools, "4.0.0"), VersionNotFound)
    assert isinstance(refusal(tools, "9.9.9"), VersionNotFound)
    assert isinstance(refusal(tools, "newest"), Malformed)


@pytest.mark.requirement("CON-10")
def test_deferred_and_deprecated_versions_can_still_be_called() -> None:
    assert snapshot_of(crm("1.0.0", S.DEFERRED)).resolve("crm.get_user").version == "1.0.0"
    assert snapshot_of(crm("1.0.0", S.DEPRECATED)).resolve("crm.get_user").version == "1.0.0"


def test_a_missing_version_lists_the_ones_there_are() -> None:
    assert refusal(SIDE_BY_SIDE, "7.x").details["versions"] == ["3.0.0-rc.1", "2.0.0", "1.3.0", "1.2.0", "1.0.0"]


def unknown(tools: TenantTools, name: str, hidden: str = "") -> ToolNotFound:
    with pytest.raises(ToolNotFound) as refused:
        tools.resolve(name, visible=lambda each: each != hidden)
    return refused.value


def test_a_typo_hears_what_was_probably_meant() -> None:
    tools = snapshot_of(crm("1.0.0"), version_of(contract(namespace="mail", name="send")))
    assert unknown(tools, "crm.get_usr").details["did_you_mean"] == ["crm.get_user"]
    assert unknown(tools, "crn.get_user").details["did_you_mean"] == ["crm.get_user"]
    assert unknown(tools, "crm__get_usr").details["did_you_mean"] == ["crm.get_user"]
    assert unknown(tools, "get_user").message == "there is no tool get_user; did you mean crm.get_user?"
    assert unknown(tools, "weather.now").details["did_you_mean"] == []


@pytest.mark.requirement("GOV-1")
@pytest.mark.requirement("REG-3")
def test_what_is_hidden_takes_nobodys_place_among_the_suggestions() -> None:
    shown = version_of(contract(namespace="crmx", name="refunds"))
    hidden = [version_of(contract(namespace=each, name="pay")) for each in ("crmz", "crmza", "crmzb", "crmzc", "crmzd")]
    for tools in (snapshot_of(shown), snapshot_of(shown, *hidden), snapshot_of(*hidden, shown)):
        with pytest.raises(ToolNotFound) as refused:
            tools.resolve("crmz.refunds1", visible=lambda name: name == "crmx.refunds")
        assert refused.value.details["did_you_mean"] == ["crmx.refunds"]


def test_a_hidden_tool_and_one_that_is_not_there_are_refused_alike() -> None:
    there = snapshot_of(crm("1.0.0", aliases=["crm.find"]), version_of(contract(name="get_users")))
    not_there = snapshot_of(version_of(contract(name="get_users")))
    drafted = snapshot_of(crm("1.0.0", S.DRAFT), version_of(contract(name="get_users")))
    for name in ("crm.get_user", "crm__get_user", "crm.find", "crm.get_usr"):
        expected = unknown(not_there, name)
        for tools in (there, drafted):
            found = unknown(tools, name, hidden="crm.get_user")
            assert (found.message, found.details, found.advice) == (expected.message, expected.details, expected.advice)


def test_a_changed_tool_is_new_and_every_other_is_shared() -> None:
    before = snapshot_of(crm("1.0.0", aliases=["crm.find"]), version_of(contract(name="other")))
    moved = snapshot_of(crm("1.0.0", S.RETIRED, aliases=["crm.find"])).tools
    after = before.changed(2, moved)
    assert after.epoch == 2
    assert after.tools["crm.other"] is before.tools["crm.other"]
    assert after.find("crm.find") is None
    assert before.find("crm.find") is not None


def test_a_version_is_compiled_once_for_everyone_who_holds_it() -> None:
    one, other = crm("1.0.0"), crm("1.0.0")
    assert one.tool is other.tool
    assert one.moved_to(S.DISABLED).tool is one.tool


def test_bytes_that_do_not_match_their_digest_are_not_trusted() -> None:
    good = crm("1.0.7")
    raw = good.raw.replace(b"Look up", b"Destroy")
    forged = ToolVersion(version="1.0.7", digest=good.digest, raw=raw, state=S.AVAILABLE)
    with pytest.raises(Internal, match="digest"):
        _ = forged.tool


def test_a_contract_of_another_release_says_what_to_do() -> None:
    raw = crm("1.0.8").raw.replace(b'"aliases"', b'"aliasses"')
    digest = "sha256:" + hashlib.sha256(raw).hexdigest()
    with pytest.raises(RequiresSetup, match="another release"):
        _ = ToolVersion(version="1.0.8", digest=digest, raw=raw, state=S.AVAILABLE).tool
