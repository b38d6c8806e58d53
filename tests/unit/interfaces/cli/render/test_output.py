"""Print text from any source without letting it control the terminal."""

import json

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from deputize.interfaces.cli.render.output import Printer, format_json

HARM = "\x1b]0;title\x07 \x1b[2J \x9b31m \u202eevil\u2066 \U000e0041 \x08\x08 \r \x7f \x1b[8m"


@pytest.mark.parametrize("say", ["line", "success", "error", "warn", "note"])
def test_what_others_wrote_moves_no_cursor_and_hides_nothing(say: str, capsys: pytest.CaptureFixture[str]) -> None:
    getattr(Printer(), say)(HARM)
    output = "".join(capsys.readouterr())
    assert output.rstrip("\n").isprintable()
    assert r"\x1b[2J" in output
    assert r"\u202eevil" in output


def test_tables_are_no_way_around(capsys: pytest.CaptureFixture[str]) -> None:
    Printer().table(("a", "b"), [(HARM, "x")])
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_our_own_colours_stay(capsys: pytest.CaptureFixture[str]) -> None:
    Printer().line(typer.style("fine", fg="green", bold=True) + typer.style("aside", dim=True))
    assert capsys.readouterr().out == "\x1b[32m\x1b[1mfine\x1b[0m\x1b[2maside\x1b[0m\n"


@given(st.text())
def test_json_means_what_it_meant(text: str) -> None:
    assert json.loads(format_json({"a": text})) == {"a": text}


def test_json_output_is_safe_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Printer().json({"a": HARM})
    output = capsys.readouterr().out
    assert output.rstrip("\n").isprintable()
    assert json.loads(output) == {"a": HARM}
