"""What differs between two declarations, as people read it."""

from typing import Any

from deputize.catalog.drift.diff import MOST_DIFFERENCES, differences, lines


def tool(**schema: Any) -> dict[str, Any]:
    return {"name": "pay", "inputSchema": schema}


def told(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[str]:
    return lines(differences(before, after))


def test_each_place_is_told_with_what_was_and_what_is() -> None:
    before = tool(properties={"to": {"type": "string"}}, required=["to", "amount"])
    after = tool(properties={"to": {"type": "integer"}, "bcc": {"type": "string"}}, required=["amount"])
    assert told(before, after) == [
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
    assert told(before, after) == ["/description", '  "One.', "  ⟨…⟩", "  Four.", '- Five."', '+ Six."']


def test_what_cannot_be_seen_is_shown() -> None:
    before, after = ({"name": "pay", "description": each} for each in ("Pays.", "Pays\U000e0041\u202e\x1b[2K."))
    assert told(before, after) == ["/description", '- "Pays."', '+ "Pays\\U000e0041\\u202e\\x1b[2K."']


def test_letters_that_pass_for_others_are_spelt_out() -> None:
    latin, mixed = "Pays \u00e9tudes.", "P\u0430ys \u00e9tudes."
    assert told({"description": latin}, {"description": mixed})[1:] == [
        '- "Pays \\xe9tudes."',
        '+ "P\\u0430ys \\xe9tudes."',
    ]
    assert told({"description": "Pays."}, {"description": "P\u0430ys me."})[2] == '+ "P\\u0430ys me."'
    composed = told({"description": "\u00e9"}, {"description": "e\u0301"})
    assert composed[1:] == ['- "\\xe9"', '+ "e\\u0301"']


def test_a_change_deep_in_a_long_text_is_shown_and_not_cut_off() -> None:
    text = "word " * 2000
    shown = told({"description": text + "end"}, {"description": text + "mend"})
    assert "9,880 characters as before" in shown[1]
    assert shown[1].endswith('word end"')
    assert shown[2].endswith('word mend"')


def test_the_other_alternatives_of_a_choice_are_passed_over() -> None:
    before = tool(anyOf=[{"type": "string"}, {"type": "object", "required": ["a"]}])
    after = tool(anyOf=[{"type": "object", "required": ["b"]}, {"type": "string"}])
    place = "/inputSchema/anyOf/0/required"
    assert told(before, after) == [place, '- "a"', place, '+ "b"']


def test_without_a_before_everything_is_new_and_without_an_after_gone() -> None:
    assert told(None, {"name": "pay"}) == ["/name", '+ "pay"']
    assert told({"name": "pay"}, None) == ["/name", '- "pay"']
    assert told(tool(), tool()) == []


def test_there_is_a_most_that_is_told_and_it_says_so() -> None:
    many = {f"p{number}": number for number in range(2 * MOST_DIFFERENCES)}
    shown = differences({"name": "pay"}, {"name": "pay", **many})
    assert len(shown) == MOST_DIFFERENCES + 1
    assert "more differences" in str(shown[-1].after)


def test_a_place_that_is_named_to_do_harm_is_shown_for_what_it_is() -> None:
    def said(text: str) -> dict[str, Any]:
        named = {"x\x1b[2J\u202ey": {"type": "string", "description": text}}
        return {"name": "a", "inputSchema": {"type": "object", "properties": named}}

    (found,) = differences(said("one"), said("two"))
    assert found.where.isprintable()
    assert found.where == r"/inputSchema/properties/x\x1b[2J\u202ey/description"
