"""Audit entries are canonical bytes whatever their texts hold, and hold no values."""

from typing import Any

import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.call import CallOrigin, Mutation
from deputize.core.caller import Caller, Epochs
from deputize.core.clock import Clock
from deputize.core.decision import Decision
from deputize.core.degradation import Degradation
from deputize.core.errors import list_problem_types
from deputize.core.states import IllegalTransition, State
from deputize.evidence.audit_entries import (
    AuditContext,
    Passage,
    TimestampFormatter,
    encode_entry,
    encode_summary,
    hide_person,
)
from deputize.evidence.entry_fields import ENTRY_FIELDS
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("GOV-5")

TOOL = make_contract(
    effects="write",
    resources=({"resource": "note", "op": "update", "scope": 'notes/{tag} "x"'}, {"resource": "log", "op": "create"}),
)
PATHS = [
    (State.PLANNED, State.SELECTED, State.ARGUMENTS_READY, State.RUNNING, State.SUCCEEDED),
    (State.PLANNED, State.BLOCKED),
    (State.YIELDED, State.QUEUED),
    (State.UNKNOWN,),
]
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ['"', "\\", '","v":2,"x":"', "\x00\x1f\x7f", "\u2028", "\U0001f600", "12345678901234567890", "1e400"]
)
_hex = st.text("0123456789abcdef", min_size=64, max_size=64)
_ids = st.uuids(version=4).map(str)
_optional_text = st.none() | _text
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _text,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(_text, values, max_size=3),
    max_leaves=5,
)


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
        approval_id=draw(st.none() | _ids),
        origin=draw(
            st.none()
            | st.builds(
                CallOrigin, native_call_id=_optional_text, parent_call_id=st.none() | _ids, flow_id=_optional_text
            )
        ),
    )


_facts = st.fixed_dictionaries(
    {
        "id": _ids,
        "kind": st.sampled_from(["read", "refusal", "intent", "outcome", "command", "decision", "yield", "circuit"]),
        "time": st.integers(0, 4_000_000_000_000).map(lambda ms: TimestampFormatter(Clock(epoch_ms=lambda: ms)).now()),
    },
    optional={
        "input_responses": _hex,
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
        "scopes_commitment": _hex,
        "summary": st.builds(
            encode_summary,
            _json,
            size=st.integers(0, 10**9),
            redacted_count=st.integers(0, 1001),
            has_more=st.none() | st.booleans(),
        ),
        "attempts": st.integers(0, 10),
        "latency_us": st.integers(0, 10**12),
        "cost_micros": st.integers(0, 2**53 - 1),
        "degradations": st.lists(st.sampled_from(Degradation), max_size=3, unique=True).map(tuple),
        "passage": st.sampled_from(PATHS).map(lambda states: Passage(*states)),
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


def _describe_context(about: AuditContext) -> dict[str, Any]:
    return {
        name: value
        for name, value in {
            "continues": about.continued_call_id,
            "approval": about.approval_id,
            "native_call": None if about.origin is None else about.origin.native_call_id,
            "parent": None if about.origin is None else about.origin.parent_call_id,
            "flow": None if about.origin is None else about.origin.flow_id,
            "session": about.session,
        }.items()
        if value is not None
    }


@given(_entry_subjects(), _facts)
def test_an_entry_says_exactly_what_it_was_given(about: AuditContext, facts: dict[str, Any]) -> None:
    read = orjson.loads(encode_entry(about, **facts))
    wanted = {
        "v": 2, "tenant": about.caller.tenant, "caller": list(about.caller.pseudonyms), "trace": about.trace_id,
        "id": facts["id"], "kind": facts["kind"], "time": facts["time"],
    }  # fmt: skip
    for name in ("input_responses", "arguments", "result", "outcome", "error", "command", "subject"):
        if name in facts:
            wanted[name] = facts[name]
    if about.call_id is not None:
        wanted["call"] = about.call_id
    wanted |= _describe_context(about)
    if about.contract is not None:
        wanted |= {
            "tool": TOOL.full_name, "version": TOOL.version, "digest": TOOL.digest,
            "mutation_class": "write-reversible", "operation": TOOL.handler.target,
            "scopes": ['update note notes/{tag} "x"', "create log *"],
        }  # fmt: skip
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
    if "scopes_commitment" in facts:
        wanted["touched"] = facts["scopes_commitment"]
    if "summary" in facts:
        wanted["summary"] = orjson.loads(facts["summary"])
    if "passage" in facts:
        wanted["states"] = [state.value for state in facts["passage"].states]
    wanted |= {name: facts[name] for name in ("attempts", "cost_micros") if facts.get(name)}
    if facts.get("attempts"):
        wanted["latency_us"] = facts.get("latency_us", 0)
    if facts.get("degradations"):
        wanted["degradations"] = list(facts["degradations"])
    assert read == wanted
    assert read.keys() <= ENTRY_FIELDS.keys()


def test_an_entry_of_every_fact_has_every_key_that_is_described() -> None:
    about = AuditContext(
        caller=Caller(tenant="acme", user="ana", pseudonyms=("ab",)), trace_id="t", call_id="c", session="s",
        contract=TOOL, continued_call_id="d", approval_id="e",
        origin=CallOrigin(native_call_id="f", parent_call_id="g", flow_id="h"),
    )  # fmt: skip
    entry = encode_entry(
        about, id="i", kind="outcome", time="t", arguments="a", input_responses="b", redactions=("/x",),
        mutations=(Mutation(path="/x", source="y", change="z"),), hooks=("h",), outcome="succeeded", error="E1",
        decision=Decision(rules=("r",), epochs=Epochs(), policy_digest="p", record_id="q"), result="r", command="c",
        subject="s", confirmation="k", scopes_commitment="t", signatures=("s",),
        summary=encode_summary([1], size=3, redacted_count=1, has_more=True),
        attempts=1, latency_us=2, cost_micros=3, degradations=(Degradation.LATE_RESULT,),
        suspicions=("sql /arguments/q",),
        passage=Passage(State.SUCCEEDED, before=State.RUNNING),
    )  # fmt: skip
    assert list(orjson.loads(entry)) == list(ENTRY_FIELDS) == sorted(ENTRY_FIELDS)


def test_no_entry_names_states_that_the_transitions_do_not_allow() -> None:
    for states, before in (
        ((State.PLANNED, State.SUCCEEDED), None),
        ((State.SUCCEEDED,), State.QUEUED),
        ((State.RUNNING, State.SUCCEEDED, State.RUNNING), None),
    ):
        with pytest.raises(IllegalTransition):
            Passage(*states, before=before)


@given(_json, st.integers(0, 10**9))
def test_a_summary_has_the_shape_of_a_result_and_no_value(payload: Any, size: int) -> None:
    summary = orjson.loads(encode_summary(payload, size=size, redacted_count=0, has_more=None))
    expected = {"bytes": size, "type": summary["type"]}
    if isinstance(payload, dict | list):
        expected["items"] = len(payload)
    assert summary == expected
    assert summary["type"] in {"object", "array", "string", "number", "boolean", "null"}


V1_ENTRY = (
    b'{"arguments":"5f","call":"0198c0de-0000-7000-8000-000000000001","caller":["ab"],"digest":"sha256:00",'
    b'"id":"0198c0de-0000-7000-8000-000000000001","kind":"read","outcome":"succeeded","result":"6a","rules":["r"],'
    b'"tenant":"acme","time":"2026-01-01T00:00:00.000Z","tool":"lab.look","trace":"00","v":1,"version":"1.0.0"}'
)


def test_version_2_has_every_key_of_version_1() -> None:
    fields = orjson.loads(V1_ENTRY)
    assert rfc8785.dumps(fields) == V1_ENTRY
    assert fields.keys() <= {name for name, field in ENTRY_FIELDS.items() if field.since == 1}


@given(_entry_subjects(), _facts)
def test_an_entrys_numbers_are_whole_and_it_has_no_name_of_a_caller(about: AuditContext, facts: dict[str, Any]) -> None:
    made = encode_entry(about, **facts)
    assert all(type(number) is int and 0 <= number < 2**53 for number in _find_numbers(orjson.loads(made)))
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


def test_what_callers_choose_is_stated_without_their_name_and_personal_data() -> None:
    """Bytes that were hashed cannot be erased."""
    for user in ("zoe", "issuer=https://idp.example zoe"):
        context = AuditContext(
            caller=Caller(tenant="acme", user=user),
            trace_id="0" * 32,
            session="zoe: 0171-234-5678",
            tool="mail to zoe@example.org",
            origin=CallOrigin(native_call_id="zoe_1", flow_id="bezoek 10.20.30.40"),
        )
        entry = orjson.loads(
            encode_entry(
                context,
                id="i",
                kind="refusal",
                time="t",
                redactions=("/zoe@example.org/password", "/password"),
                suspicions=("sql /zoe",),
                mutations=(Mutation(path="/of zoe", source="default", change="absent"),),
            )
        )
        assert (entry["session"], entry["native_call"], entry["flow"]) == (
            "[redacted]: [phone]", "[redacted]_1", "bezoek [ip]",
        )  # fmt: skip
        assert "zoe" not in entry["tool"]
        assert entry["redactions"][1] == "/password"
        assert all("zoe" not in text for text in (*entry["redactions"], *entry["suspicions"], *entry["mutations"]))
    # Parts of other words stay, and a name is no pattern.
    for name, text in (("a.c", "abc"), ("ana", "banana"), ("", "x"), ("x", "")):
        assert hide_person(text, name) == text
