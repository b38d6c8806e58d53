"""The error of a tool reaches callers, entries and stored calls without secrets and paths."""

from typing import Any

import orjson
import pytest

from deputize import SemanticViolation, ToolFailed
from deputize.core.outcome import Outcome
from deputize.core.states import State
from tests.support.database_texts import list_tables_with
from tests.support.gateway_lab import GatewayLab, error_slug, parse_body
from tests.support.scripted_tools import precondition_errors, previews, raise_error, set_behaviour

pytestmark = [pytest.mark.requirement("GOV-6"), pytest.mark.requirement("CON-6")]

PASSWORD, EMAIL = "tr0ub4dor", "ana@example.org"
KEY_PATH = "/srv/keys/upstream.pem"
TOLD = [PASSWORD, EMAIL, "srv/keys"]


async def _enrol(lab: GatewayLab, tag: str) -> Outcome:
    return await lab.call("enrol", {"tag": tag, "email": EMAIL, "password": PASSWORD}, key=tag)


async def _export(lab: GatewayLab, outcome: Outcome) -> dict[str, Any]:
    return await lab.gateway.call_exports.export_call(await lab.make_caller(), outcome.call_id)


async def _judge_redaction(lab: GatewayLab, outcome: Outcome) -> str:
    return str((await _export(lab, outcome))["tool_result"]["redaction_state"])


async def _assert_untold(lab: GatewayLab, outcome: Outcome) -> None:
    entries = await lab.fetch_entries(outcome.call_id)
    stored = await lab.db.fetchval("select row_to_json(c)::text from deputize.calls c where id = $1", outcome.call_id)
    for text in (orjson.dumps(parse_body(outcome)).decode(), orjson.dumps(entries).decode(), stored or ""):
        assert not [each for each in TOLD if each in text], text


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"cannot sign in with {PASSWORD}"),
        ConnectionError(f"{EMAIL} was refused"),
        ToolFailed(f"{EMAIL} has no {KEY_PATH}", details={"tried": [PASSWORD], "password": "other", "for": EMAIL}),
        SemanticViolation(f"{PASSWORD[:6]} is too short for {EMAIL[:9]}", details={EMAIL: f"not {PASSWORD}"}),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_tools_error_quotes_no_sensitive_argument(lab: GatewayLab, error: Exception) -> None:
    tag = f"quote-{type(error).__name__}"
    set_behaviour(tag, raise_error(error))
    outcome = await _enrol(lab, tag)
    assert outcome.state in (State.FAILED, State.UNKNOWN, State.VALIDATION_FAILED)
    await _assert_untold(lab, outcome)
    # A repeat of the key gets what was stored, or the tool's error again.
    await _assert_untold(lab, await _enrol(lab, tag))


async def test_what_an_author_raises_is_not_changed_for_other_calls(lab: GatewayLab) -> None:
    error = ToolFailed(f"{EMAIL} is unknown")
    set_behaviour("shared", raise_error(error))
    await _enrol(lab, "shared")
    assert error.message == f"{EMAIL} is unknown"


async def test_details_that_contain_themselves_are_left_out(lab: GatewayLab) -> None:
    details: dict[str, Any] = {"why": "endless"}
    details["again"] = details
    set_behaviour("endless", raise_error(ToolFailed("it is endless", details=details)))
    outcome = await _enrol(lab, "endless")
    assert (error_slug(outcome), parse_body(outcome)["detail"]) == ("tool-failed", "it is endless")


async def test_the_tools_own_checks_are_redacted_too(lab: GatewayLab) -> None:
    precondition_errors["own"] = ValueError("no user with password=abc1")
    refused = await lab.call("checked_note", "own", key="own")
    assert error_slug(refused) == "semantic-violation"
    assert "abc1" not in parse_body(refused)["detail"]


async def test_a_preview_that_fails_is_redacted_too(lab: GatewayLab) -> None:
    def fail(_: Any) -> Any:
        raise ToolFailed("the token is a1b2c3 in /srv/keys/x")

    previews["failing"] = fail
    shown = await lab.call("erase", "failing", dry_run=True)
    text = orjson.dumps(parse_body(shown)).decode()
    assert "[redacted]" in text
    assert "a1b2c3" not in text
    assert "srv/keys" not in text


async def test_no_table_keeps_what_was_quoted(lab: GatewayLab) -> None:
    set_behaviour("kept", raise_error(ValueError(f"cannot sign in with {PASSWORD}")))
    await _enrol(lab, "kept")
    assert await list_tables_with(lab.dsn, TOLD) == []


async def test_an_exported_failure_says_that_something_is_hidden_in_it(lab: GatewayLab) -> None:
    set_behaviour("hidden-in-export", raise_error(ValueError("no account for ana@example.com")))
    outcome = await lab.call("note", "hidden-in-export", key="hidden-in-export")
    assert "ana@example.com" not in str(await _export(lab, outcome))
    assert await _judge_redaction(lab, outcome) == "partial"


async def test_a_mark_that_a_tool_wrote_itself_hides_nothing(lab: GatewayLab) -> None:
    set_behaviour("own-mark", raise_error(ToolFailed("no account for [email]")))
    outcome = await lab.call("note", "own-mark", key="own-mark")
    assert parse_body(outcome)["detail"] == "no account for [email]"
    assert await _judge_redaction(lab, outcome) == "none"


async def test_what_a_driver_has_hidden_counts_also_where_another_error_quotes_it(lab: GatewayLab) -> None:
    def fail(*_: Any) -> Any:
        try:
            raise ToolFailed("the service said [email]").replace(is_redacted=True)
        except ToolFailed as hidden:
            raise ToolFailed(f"no answer: {hidden.message}") from hidden

    set_behaviour("quoted-mark", fail)
    outcome = await lab.call("note", "quoted-mark", key="quoted-mark")
    assert await _judge_redaction(lab, outcome) == "partial"
