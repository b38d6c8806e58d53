"""What a person reads after a refusal: one advice, which is right."""

import pytest

from deputize.core.errors import Problem, ToolConflict, UpstreamRateLimited
from deputize.core.outcome import build_problem_fields
from deputize.interfaces.cli.render.problems import is_repeatable, show_problem


def _show(problem: Problem, capsys: pytest.CaptureFixture[str]) -> str:
    show_problem(build_problem_fields(problem, trace_id="0" * 32))
    return capsys.readouterr().err


def test_a_conflict_is_no_reason_to_repeat_the_same_call(capsys: pytest.CaptureFixture[str]) -> None:
    text = _show(ToolConflict("the file was changed"), capsys)
    assert "Read the current state, then call again" in text
    assert "retry" not in text
    assert "key" not in text
    assert not is_repeatable(build_problem_fields(ToolConflict("no"), trace_id="")["error"])


def test_what_passes_by_itself_may_be_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert "You can retry in 2 s" in _show(UpstreamRateLimited("later", retry_after_ms=2000), capsys)
