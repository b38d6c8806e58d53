"""Write the accessibility tree of a page as lines of text, with a reference for each element that one can act on.

A reference is the browser's own number of an element, so it stays while the element does; with the id of the document,
it never means an element of another one.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from deputize.tools.web.html_text import CONTROLS

_REFERENCE: Final = re.compile(r"(p[0-9]{1,9})e([0-9]{1,12})")
REFERENCE_PATTERN: Final = rf"^{_REFERENCE.pattern}$"
_ACTIVE_ROLES: Final = frozenset(
    {
        "button", "checkbox", "combobox", "DisclosureTriangle", "gridcell", "link", "listbox", "menuitem",
        "menuitemcheckbox", "menuitemradio", "option", "radio", "searchbox", "slider", "spinbutton", "switch", "tab",
        "textbox", "treeitem",
    }
)  # fmt: skip
# They say nothing themselves.
_SILENT_ROLES: Final = frozenset({"", "generic", "LabelText", "ListMarker", "none", "presentation", "Section"})
_TEXT_ROLES: Final = frozenset({"StaticText", "LineBreak"})
_SKIPPED_ROLES: Final = frozenset({"InlineTextBox", "RootWebArea"})
_STATES: Final = ("checked", "disabled", "expanded", "invalid", "level", "pressed", "required", "selected")
_MAX_WORDS: Final = 2_000
_MAX_URL: Final = 500
MAX_DEPTH: Final = 60


def build_text(nodes: Sequence[Mapping[str, Any]], page_id: str, root: int | None = None) -> str:
    """Build the lines of a tree, or of the part below the element with a number."""
    by_id = {each["nodeId"]: each for each in nodes}
    first = (
        next(iter(nodes), None)
        if root is None
        else next((each for each in nodes if each.get("backendDOMNodeId") == root), None)
    )
    lines: list[str] = []
    # Not by recursion: a page can be nested as deep as its author likes.
    pending = [] if first is None else [(first["nodeId"], 0, "")]
    seen = set()
    while pending:
        identifier, depth, parent_name = pending.pop()
        node = by_id.get(identifier)
        if node is None or identifier in seen:
            continue
        seen.add(identifier)
        role, name = _read(node.get("role")), _clean(_read(node.get("name")))
        is_shown = not node.get("ignored") and role not in _SKIPPED_ROLES
        if is_shown and role in _TEXT_ROLES:
            if name and name not in parent_name:
                lines.append(f"{'  ' * depth}{name}")
        elif is_shown and (role not in _SILENT_ROLES or _is_focusable(node)):
            lines.append("  " * depth + _describe(node, role, name, page_id))
            depth, parent_name = min(depth + 1, MAX_DEPTH), name
        pending += [(each, depth, parent_name) for each in reversed(node.get("childIds", ()))]
    return "\n".join(lines)


def build_text_job(payload: bytes) -> bytes:
    """Build the lines from a line with the id of the page and the number of an element or null, and a tree."""
    question, _, answer = payload.partition(b"\n")
    page_id, root = orjson.loads(question)
    return build_text(orjson.loads(answer)["result"]["nodes"], page_id, root).encode(errors="replace")


def split_reference(reference: str) -> tuple[str, int]:
    """Split a reference into the id of its document and the number of its element."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ValueError("a reference is as in p1e23")
    return match[1], int(match[2])


def _describe(node: Mapping[str, Any], role: str, name: str, page_id: str) -> str:
    properties = {each["name"]: _read(each.get("value")) for each in node.get("properties", ())}
    words = [f"- {role or 'element'}"]
    if name:
        words.append(f'"{name}"')
    value = _clean(_read(node.get("value")))
    if value and value != name:
        words.append(f'= "{value}"')
    words += [f"[{each}={properties[each]}]" for each in _STATES if properties.get(each) not in (None, "", "false")]
    if (role in _ACTIVE_ROLES or _is_focusable(node)) and "backendDOMNodeId" in node:
        words.append(f"[ref={page_id}e{node['backendDOMNodeId']}]")
    if role == "link" and properties.get("url"):
        words.append(f"<{_clean(properties['url'])[:_MAX_URL]}>")
    return " ".join(words)


def _is_focusable(node: Mapping[str, Any]) -> bool:
    return any(
        each["name"] == "focusable" and _read(each.get("value")) == "true" for each in node.get("properties", ())
    )


def _read(value: Any) -> str:
    """Read a value of the protocol as text."""
    content = value.get("value") if isinstance(value, Mapping) else None
    return "" if content is None else str(content).lower() if isinstance(content, bool) else str(content)


def _clean(text: str) -> str:
    """Write a text in one line, without characters that change how others look."""
    return " ".join(text.translate(CONTROLS).split())[:_MAX_WORDS]
