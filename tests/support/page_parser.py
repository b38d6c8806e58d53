"""Parse a page of the console, and find what in it is not the console's own: elements, attributes and addresses."""

from html.parser import HTMLParser

from tests.support.hostile_texts import MARK

_TAGS = set(
    """html head meta title link script body header nav a form label input main footer details summary div p h1 h2 h3
    section aside table caption thead tbody tr th td ul ol li dl dt dd span strong code pre bdi q time select option
    textarea button br svg g path rect line text circle polyline polygon defs marker kbd datalist noscript""".split()  # noqa: SIM905 -- sixty words read better as a text
)
# The only ones that say what a browser does; all others describe.
_ATTRIBUTES = set(
    """lang charset name content http-equiv rel href src nonce defer class id for type value placeholder autocomplete
    autocapitalize spellcheck maxlength required rows selected checked open action method formaction role scope
    datetime download hidden disabled colspan rowspan min max step xmlns viewbox width height x y x1 y1 x2 y2 cx cy r
    rx ry d points transform preserveaspectratio text-anchor dominant-baseline marker-end orient refx refy markerwidth
    markerheight focusable data-letter data-key data-label data-live data-live-state data-when-empty data-zone
    data-follow list tabindex""".split()  # noqa: SIM905 -- as above
)
_ADDRESSES = frozenset({"href", "src", "action", "formaction", "data-live"})
# Where a caller's text may stand in an attribute, as a value that nothing acts on, or quoted in an address of ours.
_PLACES_OF_TEXT = frozenset({"value", "data-key", "href", "data-live"})


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag not in _TAGS:
            self.faults.append(f"the element {tag}")
        for name, value in attrs:
            text = value or ""
            if name not in _ATTRIBUTES and not name.startswith("aria-"):
                self.faults.append(f"the attribute {name} of {tag}")
            if name in _ADDRESSES and not text.startswith(("/console", "#")):
                self.faults.append(f"the address {text!r} of {tag}")
            # A page that follows a call is loaded again, itself and nothing else.
            if name == "http-equiv" and (text != "refresh" or not (dict(attrs).get("content") or "").isdigit()):
                self.faults.append(f"a header in the page: {attrs}")
            if MARK in text and name not in _PLACES_OF_TEXT:
                self.faults.append(f"a text of a caller in {name} of {tag}")

    def handle_comment(self, data: str) -> None:
        self.faults.append(f"a comment: {data!r}")

    def handle_pi(self, data: str) -> None:
        self.faults.append(f"an instruction: {data!r}")

    def unknown_decl(self, data: str) -> None:
        self.faults.append(f"a declaration: {data!r}")


def find_foreign_markup(page: str) -> list[str]:
    """List what stands in a page, or a part of one, that stems from a text and not from a template."""
    parser = _Parser()
    parser.feed(page)
    parser.close()
    if parser.scripts > 1:
        parser.faults.append("a second script")
    # What was typed into a form of several lines comes back with its tabs.
    hidden = sorted({each for each in page if not each.isprintable() and each not in "\n\t"})
    return [*parser.faults, *(f"the hidden character {each!r}" for each in hidden)]
