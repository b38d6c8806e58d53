"""What `deputize servers effects` reads from its options."""

from typing import Any

import pytest

from deputize.interfaces.cli.render.output import CommandExit
from deputize.interfaces.cli.render.server_effects import list_unconfirmed_tools, parse_choices


def make_tool(name: str, source: str = "unconfirmed", proposed: str | None = "read") -> dict[str, Any]:
    return {"name": name, "display_name": name, "source": source, "proposed_effects": proposed}


TOOLS = [
    make_tool("a"),
    make_tool("b=c", proposed="write"),
    make_tool("d", "settings"),
    make_tool("m", "protocol", None),
]


def test_accepting_takes_every_proposal_and_set_wins() -> None:
    assert [each["name"] for each in list_unconfirmed_tools(TOOLS)] == ["a", "b=c"]
    assert parse_choices(TOOLS, [], accept=True) == {"a": "read", "b=c": "write"}
    assert parse_choices(TOOLS, ["b=c=destructive"], accept=True) == {"a": "read", "b=c": "destructive"}
    assert parse_choices(TOOLS, ["d=read"], accept=False) == {"d": "read"}


@pytest.mark.parametrize("word", ["a", "a=", "a=none", "x=read", "m=read", "=read", ""])
def test_a_word_that_says_nothing_ends_the_command(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandExit):
        parse_choices(TOOLS, [word], accept=False)
    assert "--set" in capsys.readouterr().err
