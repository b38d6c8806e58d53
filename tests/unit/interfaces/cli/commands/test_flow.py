"""`deputize flow watch` says what of a failed flow stays, to people and to programs."""

import json
from typing import Any

import pytest

from deputize.interfaces.cli.commands.flow import _print_compensation
from deputize.interfaces.cli.render.output import printer

pytestmark = pytest.mark.requirement("RES-4")

LEFT: dict[str, Any] = {"step": "two", "reason": "irreversible", "detail": "nothing takes back a call of mail.send"}


def test_what_stays_is_named_with_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _print_compensation("01", {"left": [LEFT]})
    _print_compensation("01", {"left": []})
    _print_compensation("01", None)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "two stays (irreversible): nothing takes back a call of mail.send" in shown.err
    assert shown.err.count("deputize undo 01 --plan") == 1
    monkeypatch.setattr(printer, "as_json", True)
    _print_compensation("01", {"left": [LEFT]})
    assert json.loads(capsys.readouterr().out) == {"event": "left", **LEFT}
