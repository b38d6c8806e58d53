"""Test the differences between two declarations as reviewers see them."""

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any

from deputize.catalog.drift.diff import MOST_DIFFERENCES, diff_definitions


def make_tool(**schema: Any) -> dict[str, Any]:
    return {"name": "pay", "inputSchema": schema}


def diff_lines(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[str]:
    """List differences as the pointer, then old (`- `) and new (`+ `) lines with context (`  `)."""
    lines: list[str] = []
    for each in diff_definitions(before, after):
        lines.append(each.where or "/")
        lines += mark_lines(split_lines(each.before), split_lines(each.after))
    return lines


def split_lines(text: str | None) -> list[str]:
    return [] if text is None else text.split("\n")


def mark_lines(before: list[str], after: list[str]) -> Iterator[str]:
    for kind, old, old_end, new, new_end in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            context = before[old:old_end]
            yield from (f"  {line}" for line in (context if len(context) <= 2 else [context[0], "⟨…⟩", context[-1]]))
        else:
            yield from (f"- {line}" for line in before[old:old_end])
            yield from (f"+ {line}" for line in after[new:new_end])


def test_each_difference_shows_the_old_and_the_new_value() -> None:
    before = make_tool(properties={"to": {"type": "string"}}, required=["to", "amount"])
    after = make_tool(properties={"to": {"type": "integer"}, "bcc": {"type": "string"}}, required=["amount"])
    assert diff_lines(before, after) == [
        "/inputSchema/properties/to/type",
        '- "string"',
        '+ "integer"',
        "/inputSchema/properties/bcc",
        "+ {",
        '+   "type": "string"',
        "+ }",
        "/inputSchema/required",
        '- "to"',
    ]


def test_of_a_text_of_many_lines_only_what_changed_is_marked() -> None:
    text = "One.\nTwo.\nThree.\nFour.\nFive."
    before, after = ({"name": "pay", "description": each} for each in (text, text.replace("Five.", "Six.")))
    assert diff_lines(before, after) == ["/description", '  "One.', "  ⟨…⟩", "  Four.", '- Five."', '+ Six."']


def test_what_cannot_be_seen_is_shown() -> None:
    before, after = ({"name": "pay", "description": each} for each in ("Pays.", "Pays\U000e0041\u202e\x1b[2K."))
    assert diff_lines(before, after) == ["/description", '- "Pays."', '+ "Pays\\U000e0041\\u202e\\x1b[2K."']


def test_letters_that_pass_for_others_are_spelt_out() -> None:
    latin, mixed = "Pays \u00e9tudes.", "P\u0430ys \u00e9tudes."
    assert diff_lines({"description": latin}, {"description": mixed})[1:] == [
        '- "Pays \\xe9tudes."',
        '+ "P\\u0430ys \\xe9tudes."',
    ]
    assert diff_lines({"description": "Pays."}, {"description": "P\u0430ys me."})[2] == '+ "P\\u0430ys me."'
    composed = diff_lines({"description": "\u00e9"}, {"description": "e\u0301"})
    assert composed[1:] == ['- "\\xe9"', '+ "e\\u0301"']


def test_a_change_deep_in_a_long_text_is_shown_and_not_cut_off() -> None:
    text = "word " * 2000
    shown = diff_lines({"description": text + "end"}, {"description": text + "mend"})
    assert "9,880 unchanged characters" in shown[1]
    assert shown[1].endswith('word end"')
    assert shown[2].endswith('word mend"')


def test_the_other_alternatives_of_a_choice_are_passed_over() -> None:
    before = make_tool(anyOf=[{"type": "string"}, {"type": "object", "required": ["a"]}])
    after = make_tool(anyOf=[{"type": "object", "required": ["b"]}, {"type": "string"}])
    place = "/inputSchema/anyOf/0/required"
    assert diff_lines(before, after) == [place, '- "a"', place, '+ "b"']


def test_without_a_before_everything_is_new_and_without_an_after_gone() -> None:
    assert diff_lines(None, {"name": "pay"}) == ["/name", '+ "pay"']
    assert diff_lines({"name": "pay"}, None) == ["/name", '- "pay"']
    assert diff_lines(make_tool(), make_tool()) == []


def test_a_long_diff_is_truncated_and_says_so() -> None:
    many = {f"p{number}": number for number in range(2 * MOST_DIFFERENCES)}
    shown = diff_definitions({"name": "pay"}, {"name": "pay", **many})
    assert len(shown) == MOST_DIFFERENCES + 1
    assert "more differences" in str(shown[-1].after)


def test_a_place_that_is_named_to_do_harm_is_shown_for_what_it_is() -> None:
    def make_definition(text: str) -> dict[str, Any]:
        named = {"x\x1b[2J\u202ey": {"type": "string", "description": text}}
        return {"name": "a", "inputSchema": {"type": "object", "properties": named}}

    (found,) = diff_definitions(make_definition("one"), make_definition("two"))
    assert found.where.isprintable()
    assert found.where == r"/inputSchema/properties/x\x1b[2J\u202ey/description"
