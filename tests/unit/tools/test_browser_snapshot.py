"""An accessibility tree becomes lines, however it is made."""

from typing import Any

import pytest

from deputize.tools.browser.snapshot import MAX_DEPTH, build_text, split_reference

pytestmark = pytest.mark.requirement("EXE-4")


def node(number: int, role: str, name: str = "", children: tuple[int, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "nodeId": str(number), "backendDOMNodeId": number, "role": {"value": role}, "name": {"value": name},
        "childIds": [str(each) for each in children],
        "properties": [{"name": name, "value": {"value": value}} for name, value in properties.items()],
    }  # fmt: skip


def test_elements_are_lines_with_references() -> None:
    tree = [
        node(1, "RootWebArea", "Tea", (2, 3, 6, 8, 9)),
        node(2, "heading", "Green\u0007 tea\n- button", (), level=1),
        node(3, "link", "prices", (4,), url="https://a.example/\x1b[1m", focusable=True),
        node(4, "StaticText", "prices", (5,)),
        node(5, "InlineTextBox", "prices"),
        node(6, "generic", "", (7,)),
        node(7, "StaticText", "Brewed at 70 °C."),
        node(8, "checkbox", "Gift", (), checked="true", disabled=False),
        {**node(9, "button", "hidden"), "ignored": True},
    ]
    assert build_text(tree, "p4").split("\n") == [
        '- heading "Green tea - button" [level=1]',
        '- link "prices" [ref=p4e3] <https://a.example/[1m>',
        "Brewed at 70 °C.",
        '- checkbox "Gift" [checked=true] [ref=p4e8]',
    ]
    assert build_text(tree, "p4", 6) == "Brewed at 70 °C."
    assert build_text(tree, "p4", 99) == build_text([], "p4", 1) == ""


def test_trees_without_an_end_or_a_bottom_are_read_once() -> None:
    circle = [node(1, "list", "", (2, 1)), node(2, "listitem", "x", (1, 7))]
    assert build_text(circle, "p1") == '- list\n  - listitem "x"'
    deep = [node(each, "group", "x", (each + 1,)) for each in range(1, 5_001)]
    lines = build_text(deep, "p1").split("\n")
    assert len(lines) == 5_000
    assert lines[-1].startswith("  " * MAX_DEPTH + "- group")


def test_a_reference_names_its_document() -> None:
    assert split_reference("p12e345") == ("p12", 345)
    for text in ("", "e1", "p1", "p1e", "p1e2x", "p1e2\n", "p\u0661e1"):
        with pytest.raises(ValueError, match="a reference is"):
            split_reference(text)
