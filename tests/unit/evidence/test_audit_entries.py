"""Audit entries are canonical bytes whatever their texts hold, and hold no values."""

from typing import Any

import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.call import Mutation
from deputize.core.caller import Caller, Epochs
from deputize.core.clock import Clock
from deputize.core.decision import Decision
from deputize.core.errors import list_problem_types
from deputize.core.states import State
from deputize.evidence.audit_entries import AuditContext, TimestampFormatter, encode_entry
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("GOV-5")

TOOL = make_contract()
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ['"', "\\", '","v":2,"x":"', "\x00\x1f\x7f", "\u2028", "\U0001f600", "12345678901234567890", "1e400"]
)
_hex = st.text("0123456789abcdef", min_size=64, max_size=64)
_ids = st.uuids(version=4).map(str)
_optional_text = st.none() | _text


@st.composite
def _entry_subjects(draw: st.DrawFn) -> AuditContext:
    caller = Caller(
        tenant=draw(st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True)),
        user="ana@example.com",
        agents=("bot-secret-name",),
        pseudonyms=tuple(draw(st.lists(_hex, max_size=3))),
    )
    return AuditContext(
        caller=caller,
        trace_id=draw(_hex)[:32],
        call_id=draw(st.none() | _ids),
        session=draw(_optional_text),
        contract=draw(st.sampled_from([None, TOOL])),
        tool=draw(_optional_text),
        continued_call_id=draw(st.none() | _ids),
    )


_facts = st.fixed_dictionaries(
    {
        "id": _ids,
        "kind": st.sampled_from(["read", "refusal", "intent", "outcome", "command", "decision"]),
        "time": st.integers(0, 4_000_000_000_000).map(lambda ms: TimestampFormatter(Clock(epoch_ms=lambda: ms)).now()),
    },
    optional={
        "answers": _hex,
        "arguments": _hex,
        "result": _hex,
        "redactions": st.lists(_text, max_size=3).map(tuple),
        "mutations": st.lists(st.builds(Mutation, path=_text, source=_text, change=_text), max_size=3).map(tuple),
        "decision": st.builds(
            Decision,
            rules=st.lists(_text, max_size=3).map(tuple),
            epochs=st.just(Epochs()),
            policy_digest=st.just("") | _hex.map("sha256:{}".format),
            record_id=st.just("") | _hex,
        ),
        "outcome": st.sampled_from([state.value for state in State]),
        "error": st.sampled_from([leaf.spec.e_number for leaf in list_problem_types()]),
        "command": _text,
        "subject": _text,
    },
)


def _find_numbers(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [number for each in value.values() for number in _find_numbers(each)]
    if isinstance(value, list):
        return [number for each in value for number in _find_numbers(each)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


@given(_entry_subjects(), _facts)
def test_an_entrys_bytes_are_its_canonical_form(about: AuditContext, facts: dict[str, Any]) -> None:
    made = encode_entry(about, **facts)
    assert made == rfc8785.dumps(orjson.loads(made))


@given(_entry_subjects(), _facts)
def test_an_entry_says_exactly_what_it_was_given(about: AuditContext, facts: dict[str, Any]) -> None:
    read = orjson.loads(encode_entry(about, **facts))
    wanted = {
        "v": 1, "tenant": about.caller.tenant, "caller": list(about.caller.pseudonyms), "trace": about.trace_id,
        "id": facts["id"], "kind": facts["kind"], "time": facts["time"],
    }  # fmt: skip
    for name in ("answers", "arguments", "result", "outcome", "error", "command", "subject"):
        if name in facts:
            wanted[name] = facts[name]
    if about.call_id is not None:
        wanted["call"] = about.call_id
    if about.continued_call_id is not None:
        wanted["continues"] = about.continued_call_id
    if about.session is not None:
        wanted["session"] = about.session
    if about.contract is not None:
        wanted |= {"tool": TOOL.full_name, "version": TOOL.version, "digest": TOOL.digest}
    elif about.tool is not None:
        wanted["tool"] = about.tool
    if facts.get("redactions"):
        wanted["redactions"] = list(facts["redactions"])
    if facts.get("mutations"):
        wanted["mutations"] = [f"{each.path} {each.source} {each.change}" for each in facts["mutations"]]
    if "decision" in facts:
        wanted["rules"] = list(facts["decision"].rules)
        if facts["decision"].policy_digest:
            wanted["policy"] = facts["decision"].policy_digest
        if facts["decision"].record_id:
            wanted["decision"] = facts["decision"].record_id
    assert read == wanted


@given(_entry_subjects(), _facts)
def test_an_entry_holds_no_number_but_its_version_and_no_name_of_a_caller(
    about: AuditContext, facts: dict[str, Any]
) -> None:
    made = encode_entry(about, **facts)
    assert _find_numbers(orjson.loads(made)) == [1]
    assert b"ana@example.com" not in made
    assert b"bot-secret-name" not in made


@given(st.lists(st.integers(0, 4_000_000_000_000), min_size=1, max_size=8))
def test_a_stamp_is_the_moment_it_was_asked_for_to_the_millisecond(moments: list[int]) -> None:
    waiting = iter(moments)
    stamps = TimestampFormatter(Clock(epoch_ms=lambda: next(waiting)))
    for moment in moments:
        stamp = stamps.now()
        assert stamp.endswith("Z")
        assert stamp == Clock(epoch_ms=lambda moment=moment: moment).now().isoformat(timespec="milliseconds")[:-6] + "Z"  # type: ignore[misc] # bound early on purpose
