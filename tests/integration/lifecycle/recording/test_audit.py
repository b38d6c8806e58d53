"""What is written down of each call: how many entries, what they say, and what never stands in them."""

from typing import Any

import orjson
import pytest
import structlog

from deputize.core.canonical import canonicalize, compute_commitment
from deputize.core.errors import ToolFailed, UnsealFailed
from deputize.core.sensitive.marks import REDACTION_MARK
from deputize.core.states import State
from tests.support.gateway_lab import GatewayLab, parse_body
from tests.support.scripted_tools import raise_error, set_behaviour

EMAIL, PASSWORD, TOKEN = "ana@secret.example", "hunter2-hunter2", "tok-9f8e7d"
PRIVATE = (EMAIL, PASSWORD, TOKEN)


async def _fetch_salted_entries(lab: GatewayLab, call_id: str) -> list[tuple[dict[str, Any], bytes | None, bytes]]:
    rows = await lab.db.fetch("select entry, salt from deputize.audit_entries where call_id = $1 order by id", call_id)
    return [(orjson.loads(row["entry"]), row["salt"], row["entry"]) for row in rows]


@pytest.mark.requirement("GOV-5")
async def test_a_read_leaves_one_entry_and_nothing_else(lab: GatewayLab) -> None:
    outcome = await lab.call("look", {"tag": "seen", "count": 2}, session="s-1")
    [(entry, salt, raw)] = await _fetch_salted_entries(lab, outcome.call_id)
    assert salt is not None
    assert raw == canonicalize(entry)
    assert (entry["kind"], entry["outcome"], entry["session"], entry["v"]) == ("read", "succeeded", "s-1", 2)
    assert (entry["tool"], entry["version"], entry["digest"]) == tuple(parse_body(outcome)["tool"].values())
    assert entry["trace"] == parse_body(outcome)["trace_id"]
    assert entry["rules"] == parse_body(outcome)["decision"]["rules"]
    assert entry["arguments"] == compute_commitment(salt, canonicalize({"tag": "seen", "count": 2}))
    assert entry["result"] == compute_commitment(salt, canonicalize({"result": {"value": "seen"}}))
    assert "seen" not in raw.decode()
    assert await lab.db.fetchval("select count(*) from deputize.calls where id = $1", outcome.call_id) == 0


@pytest.mark.requirement("GOV-5")
async def test_a_mutation_leaves_its_intent_and_its_outcome(lab: GatewayLab) -> None:
    outcome = await lab.call("note", "meant", key="meant")
    (intent, salt, raw), (end, end_salt, end_raw) = await _fetch_salted_entries(lab, outcome.call_id)
    assert (raw, end_raw) == (canonicalize(intent), canonicalize(end))
    assert (intent["kind"], end["kind"], end["outcome"]) == ("intent", "outcome", "succeeded")
    assert salt is not None
    assert end_salt is not None
    assert intent["arguments"] == compute_commitment(salt, canonicalize({"tag": "meant"}))
    assert end["result"] == compute_commitment(end_salt, canonicalize({"result": {"value": "meant"}}))
    assert "outcome" not in intent
    assert intent["call"] == end["call"] == outcome.call_id
    await lab.call("note", "meant", key="meant")
    assert await lab.fetch_entry_kinds(outcome.call_id) == ["intent", "outcome"]


@pytest.mark.requirement("GOV-5")
async def test_a_failed_mutation_says_which_error_it_was(lab: GatewayLab) -> None:
    set_behaviour("failed", raise_error(ToolFailed("no")))
    outcome = await lab.call("note", "failed", key="failed")
    end = (await lab.fetch_entries(outcome.call_id))[1]
    assert (end["outcome"], end["error"]) == ("failed", "E3401")
    assert "result" not in end


@pytest.mark.requirement("GOV-5")
async def test_callers_stand_in_entries_under_pseudonyms(lab: GatewayLab) -> None:
    by = await lab.make_caller("zoe@people.example", agent="robot-zoe")
    outcome = await lab.call("look", "who", by=by)
    [(entry, _, raw)] = await _fetch_salted_entries(lab, outcome.call_id)
    assert entry["caller"] == list(by.pseudonyms)
    assert len(entry["caller"]) == 2
    assert b"zoe" not in raw
    salt = await lab.db.fetchval("select salt from deputize.subjects where subject = 'zoe@people.example'")
    assert entry["caller"][0] == compute_commitment(salt, b"zoe@people.example")


@pytest.mark.requirement("INV-11")
@pytest.mark.requirement("CON-11")
@pytest.mark.parametrize("tool", ["look", "note"])
async def test_a_coerced_value_is_recorded_with_its_source_and_the_models_words_stay(
    lab: GatewayLab, tool: str
) -> None:
    sent = {"tag": "slip", "count": "3"}
    outcome = await lab.call(tool, sent)
    assert outcome.state is State.SUCCEEDED
    assert sent == {"tag": "slip", "count": "3"}
    [mutation] = parse_body(outcome)["input"]["mutations"]
    assert (mutation["path"], mutation["source"]) == ("/count", "coercion")
    entry, salt, _ = (await _fetch_salted_entries(lab, outcome.call_id))[0]
    assert entry["mutations"] == [f"{mutation['path']} {mutation['source']} {mutation['change']}"]
    assert salt is not None
    assert entry["arguments"] == compute_commitment(salt, canonicalize({"tag": "slip", "count": "3"}))


async def _call_enrol(lab: GatewayLab, tag: str) -> tuple[str, bytes]:
    set_behaviour(tag, lambda _: {"value": "ok", "access_token": TOKEN})
    outcome = await lab.call("enrol", {"tag": tag, "email": EMAIL, "password": PASSWORD}, key=tag)
    assert outcome.state is State.SUCCEEDED
    return outcome.call_id, outcome.body


@pytest.mark.requirement("GOV-6")
async def test_marked_and_sensitively_named_values_are_redacted_before_they_are_committed_to(lab: GatewayLab) -> None:
    call_id, _ = await _call_enrol(lab, "enrolled")
    (intent, salt, _), (end, end_salt, _) = await _fetch_salted_entries(lab, call_id)
    assert sorted(intent["redactions"]) == ["/email", "/password"]
    assert salt is not None
    assert end_salt is not None
    redacted = {"tag": "enrolled", "email": REDACTION_MARK, "password": REDACTION_MARK}
    assert intent["arguments"] == compute_commitment(salt, canonicalize(redacted))
    assert end["result"] == compute_commitment(
        end_salt, canonicalize({"result": {"value": "ok", "access_token": REDACTION_MARK}})
    )


@pytest.mark.requirement("GOV-6")
async def test_private_values_stand_in_no_table_no_log_and_no_event(lab: GatewayLab) -> None:
    with structlog.testing.capture_logs() as logged:
        call_id, _ = await _call_enrol(lab, "private")
        refused = await lab.call("enrol", {"tag": "private", "email": EMAIL, "password": [PASSWORD]}, key="bad")
        set_behaviour("private-fails", raise_error(ValueError("boom")))
        await lab.call("enrol", {"tag": "private-fails", "email": EMAIL, "password": PASSWORD}, key="fails")
    caller = await lab.make_caller()
    events = [event async for event in await lab.gateway.calls.follow_call(caller, call_id)]
    shown = str(logged) + str(events) + refused.body.decode()
    for table in ("audit_entries", "calls", "claims", "subjects", "sealed_payloads"):
        shown += str([tuple(row.values()) for row in await lab.db.fetch(f"select * from deputize.{table}")])
    for value in PRIVATE:
        assert value not in shown
        assert value.encode().hex() not in shown


@pytest.mark.requirement("GOV-6")
async def test_a_sealed_result_opens_with_its_tenants_key_and_no_other(lab: GatewayLab) -> None:
    call_id, told = await _call_enrol(lab, "sealed")
    box = await lab.db.fetchval("select ciphertext from deputize.sealed_payloads where id = $1", call_id)
    own = await lab.runtime.keys.load("dev")
    assert own.unseal(call_id, "outcome", box) == told
    stranger = await lab.runtime.keys.load("stranger")
    for keys, name in ((stranger, call_id), (own, lab.runtime.clock.new_id())):
        with pytest.raises(UnsealFailed):
            keys.unseal(name, "outcome", box)


@pytest.mark.requirement("CON-11")
async def test_permission_is_decided_on_what_the_caller_may_not_write(lab: GatewayLab) -> None:
    outcome = await lab.call("look", {"tag": "x", "context": {"user": "root"}})
    assert outcome.state is State.VALIDATION_FAILED
