"""Missing lines are added to a tool file, and every other byte stays."""

from pathlib import Path

import pytest

from deputize.interfaces.cli.local.tool_loader import check_tool_file
from deputize.interfaces.cli.local.tool_source.registration_advice import SourceGaps
from deputize.interfaces.cli.local.tool_source.source_edit import (
    SourceNotEdited,
    add_missing_lines,
    edit_tool_file,
)


def make_gaps(line: int = 1, *, names: tuple[str, ...] = ("a",), examples: tuple[str, ...] = ()) -> SourceGaps:
    return SourceGaps(
        function="f", line=line, has_docstring=True, argument_names=names, placeholder_names=(), example_names=examples
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            'def f(a):\n    """Do it."""\n    return a\n',
            'def f(a):\n    """Do it.\n\n    Args:\n        a: CHANGEME\n    """\n    return a\n',
        ),
        (
            'def f(a):\r\n\t"""Do ü."""  # é\r\n\treturn a',
            'def f(a):\r\n\t"""Do ü.\r\n\r\n\tArgs:\r\n\t    a: CHANGEME\r\n\t"""  # é\r\n\treturn a',
        ),
        (
            "def f(a, b):\n    '''Do it.\n\n    Args:\n      b: x\n        more\n\n    Returns:\n      it\n    '''\n",
            "def f(a, b):\n    '''Do it.\n\n    Args:\n      b: x\n        more\n      a: CHANGEME\n\n    Returns:\n"
            "      it\n    '''\n",
        ),
        (
            'def f(a, b):\n    """Do it.\n\n    Args:\n        b: x"""\n',
            'def f(a, b):\n    """Do it.\n\n    Args:\n        b: x\n        a: CHANGEME\n    """\n',
        ),
        (
            'def f(a):\n    r"""Do it.\n\n    Always \\d.\n    """\n',
            'def f(a):\n    r"""Do it.\n\n    Always \\d.\n\n    Args:\n        a: CHANGEME\n    """\n',
        ),
        (
            "async def f(a):\n    # why\n    return a\n",
            'async def f(a):\n    # why\n    """CHANGEME: say what it does.\n\n    Args:\n        a: CHANGEME\n'
            '    """\n    return a\n',
        ),
    ],
)
def test_lines_are_added_where_they_belong(before: str, after: str) -> None:
    assert add_missing_lines(before.encode(), [make_gaps()]).decode() == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("@tool\n", '@tool(examples=[{"a": "CHANGEME"}])\n'),
        ("@d.tool()\n", '@d.tool(examples=[{"a": "CHANGEME"}])\n'),
        ('@tool(effects="read")\n', '@tool(effects="read", examples=[{"a": "CHANGEME"}])\n'),
        (
            '@tool(\n    effects="read",  # why\n)\n',
            '@tool(\n    effects="read", examples=[{"a": "CHANGEME"}],  # why\n)\n',
        ),
        ('@tool(examples=[{"a": "CHANGEME"}])\n', '@tool(examples=[{"a": "CHANGEME"}])\n'),
        ("@tool(**options)\n", "@tool(**options)\n"),
        ("@other\n", "@other\n"),
    ],
)
def test_an_example_is_added_unless_there_is_one(before: str, after: str) -> None:
    rest = 'def f(a):\n    """Do it."""\n'
    gaps = make_gaps(names=(), examples=("a",))

    assert add_missing_lines((before + rest).encode(), [gaps]).decode() == after + rest


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(a): return a\n", "is written on one line"),
        ('def f(a):\n    "Do it."\n', "is not written with three quotes"),
        ("def g(a):\n    return a\n", "is not where it was loaded from"),
        ("def f(a:\n", "is not valid Python"),
    ],
)
def test_what_is_not_safe_is_refused(source: str, reason: str) -> None:
    with pytest.raises(SourceNotEdited, match=reason):
        add_missing_lines(source.encode(), [make_gaps()])


def test_a_result_that_would_not_compile_is_refused() -> None:
    source = b'@tool(effects=("read"))\ndef f(a):\n    """Do it."""\n'

    with pytest.raises(SourceNotEdited, match=r"would not compile|would change more"):
        add_missing_lines(source, [make_gaps(names=(), examples=("a",))])


SOURCE = '''# A comment.
from deputize import tool

FRUITS = { "apple":12 }


@tool(effects="read")
def count(fruit: str) -> int:
    """Count a fruit in the warehouse."""
    return FRUITS [fruit]


@tool
def eat(fruit: str, number: int = 1) -> None:
    FRUITS[fruit] -= number
'''


def test_a_file_is_fixed_once_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "stock.py"
    file.write_text(SOURCE)
    file.chmod(0o640)
    assert edit_tool_file(file, check_tool_file(file).source_gaps)
    text = file.read_text()

    assert [line for line in text.splitlines() if "CHANGEME" not in line and line.strip()] == [
        line for line in _expect_fixed().splitlines() if line.strip()
    ]
    assert text.count("CHANGEME") == 6
    assert file.stat().st_mode & 0o777 == 0o640
    assert not edit_tool_file(file, check_tool_file(file).source_gaps)
    assert [each.name for each in tmp_path.iterdir() if each.name != "__pycache__"] == ["stock.py"]


def _expect_fixed() -> str:
    return (
        SOURCE.replace('@tool(effects="read")\n', "")
        .replace("@tool\n", "")
        .replace('warehouse."""', 'warehouse.\n    Args:\n    """')
        .replace("-> None:\n", '-> None:\n    Args:\n    """\n')
    )


def test_the_lines_to_write_speak_of_the_function(tmp_path: Path) -> None:
    file = tmp_path / "stock.py"
    file.write_text(SOURCE)
    counted, eaten = check_tool_file(file).gaps

    assert counted.reasons == (
        "stock.py:7 count: the parameter fruit has no description; write in the docstring, for CHANGEME what it is:\n"
        "        Args:\n            fruit: CHANGEME",
        "stock.py:7 count: a call that works is missing; write in @tool, for CHANGEME real values:\n"
        '        examples=[{"fruit": "CHANGEME"}]',
    )
    assert eaten.what == "stock.eat 0.0.0"
    assert eaten.reasons[0].startswith("stock.py:13 eat: it is a draft, because its effects are not declared; write @t")
    assert not any("input_schema" in reason for reason in eaten.reasons)


KNOWN = '''\
from typing import Annotated, Literal
from pydantic import Field
from deputize import tool


@tool(effects="read")
def pack(fruit: str, count: Annotated[int, Field(examples=[12])], dry: Annotated[bool, Field(examples=[True])]) -> str:
    """Pack fruit into boxes."""
    return fruit
'''


def test_what_the_schema_knows_is_not_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "boxes.py"
    file.write_text(KNOWN)
    assert edit_tool_file(file, check_tool_file(file).source_gaps)

    assert '@tool(effects="read", examples=[{"fruit": "CHANGEME", "count": 12, "dry": True}])' in file.read_text()


def test_what_was_written_is_to_be_replaced_and_not_written_again(tmp_path: Path) -> None:
    file = tmp_path / "boxes.py"
    file.write_text(KNOWN.replace('    """Pack fruit into boxes."""\n', ""))
    edit_tool_file(file, check_tool_file(file).source_gaps)
    reasons = check_tool_file(file).gaps[0].reasons

    assert all("replace CHANGEME in" in reason for reason in reasons), reasons
    assert any("the docstring says nothing yet" in reason for reason in reasons)
    assert any("examples of @tool" in reason for reason in reasons)


def test_a_short_docstring_is_called_short_and_not_missing(tmp_path: Path) -> None:
    file = tmp_path / "stock.py"
    file.write_text(KNOWN.replace("Pack fruit into boxes.", "Do it."))
    (gap,) = check_tool_file(file).gaps
    assert "description is shorter than 10 characters; say what the tool does in one sentence" in gap.reasons[0]
    assert not any("description is missing" in reason for reason in gap.reasons)
