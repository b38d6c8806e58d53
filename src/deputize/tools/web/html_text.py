"""Turn HTML into text that a model reads: headings, lists, tables, and links as numbers.

A page is written by others, so every step goes forward only: what is opened and never closed ends with the page, as the
HTML standard says, and nothing is read twice. `html.parser` looks for the same end again from each beginning, which
takes minutes for a page of a few hundred kilobytes.
"""

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urljoin

MAX_LINKS: Final = 5_000
MAX_URL: Final = 2_048
_TAG: Final = re.compile(r"<(/?)([a-zA-Z][^\s/>]*+)")
_SPACE: Final = re.compile(r"[\s/]*+")
_ATTRIBUTE: Final = re.compile(
    r"""([^\s/>][^\s/>=]*+)(?:\s*+=\s*+(?:"([^"]*+)(?:"|\Z)|'([^']*+)(?:'|\Z)|([^\s>]*+)))?+"""
)
_SPACES: Final = re.compile(r"\s+")
_EMPTY_LINES: Final = re.compile(r"\n{3,}")
# A number with thousands of digits is not converted: Python refuses it.
_LONG_REFERENCE: Final = re.compile(r"&#[xX]?[0-9a-fA-F]{8,}+;?")
_KEPT_ATTRIBUTES: Final = frozenset({"href", "alt"})
# What is inside is no markup, up to the end tag of the same name.
_RAW_ELEMENTS: Final = frozenset({"script", "style", "iframe", "noembed", "noframes", "xmp", "title", "textarea"})
_RAW_END: Final = re.compile(r"</(script|style|iframe|noembed|noframes|xmp|title|textarea)(?=[\s/>])", re.IGNORECASE)
# What is inside is not shown as text.
_SKIPPED_ELEMENTS: Final = frozenset({"template", "svg"})
_HEADINGS: Final = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_PARAGRAPHS: Final = frozenset({"p", "ul", "ol", "dl", "table", "pre", "blockquote", "section", "article", *_HEADINGS})
_BLOCKS: Final = frozenset(
    {
        "address", "aside", "body", "br", "caption", "dd", "details", "dialog", "div", "dt", "fieldset", "figcaption",
        "figure", "footer", "form", "head", "header", "hgroup", "hr", "html", "legend", "li", "main", "nav", "option",
        "search", "summary", "tbody", "tfoot", "thead", "tr",
    }
)  # fmt: skip
_CELLS: Final = frozenset({"td", "th"})
CONTROLS: Final = dict.fromkeys((*range(9), 11, 12, 13, *range(14, 32), *range(127, 160)))


@dataclass(frozen=True, kw_only=True, slots=True)
class HtmlText:
    """The text of a page; `[n]` in it is the link n, counted from 1."""

    title: str
    text: str
    links: tuple[str, ...]


def read_html(markup: str, url: str) -> HtmlText:
    """Read the text of a page that was found at a URL."""
    writer = _Writer(base=url)
    for kind, name, attributes in _iterate(markup):
        writer.write(kind, name, attributes)
    return writer.build()


def _iterate(markup: str) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Yield `text`, `start`, `end` and `title` with the text or the name, and the attributes of a start tag."""
    position, end = 0, len(markup)
    while position < end:
        opening = markup.find("<", position)
        if opening != position:
            opening = end if opening < 0 else opening
            yield "text", markup[position:opening], {}
            position = opening
            continue
        tag = _TAG.match(markup, position)
        if tag is None:
            if markup[position + 1 : position + 2] not in ("!", "?", "/"):
                yield "text", "<", {}
                position += 1
            elif markup.startswith("<!--", position):
                position = _find_end(markup, "-->", position + 4)
            else:
                position = _find_end(markup, ">", position)
            continue
        name = tag[2].lower()
        position, attributes = _read_attributes(markup, tag.end())
        if tag[1]:
            yield "end", name, {}
            continue
        if name not in _RAW_ELEMENTS:
            is_closed = name in _SKIPPED_ELEMENTS and markup[position - 2 : position] == "/>"
            if not is_closed:
                yield "start", name, attributes
            continue
        raw_end = next((each for each in _RAW_END.finditer(markup, position) if each[1].lower() == name), None)
        content_end = end if raw_end is None else raw_end.start()
        if name in ("title", "textarea", "xmp"):
            yield "title" if name == "title" else "text", markup[position:content_end], {}
        position = content_end if raw_end is None else _find_end(markup, ">", content_end)


def _find_end(markup: str, mark: str, position: int) -> int:
    found = markup.find(mark, position)
    return len(markup) if found < 0 else found + len(mark)


def _read_attributes(markup: str, position: int) -> tuple[int, dict[str, str]]:
    """Read up to the end of a tag; return the position behind it, and the attributes that count."""
    attributes: dict[str, str] = {}
    while (position := _skip(markup, position)) < len(markup):
        attribute = _ATTRIBUTE.match(markup, position)
        if attribute is None:
            return position + 1, attributes
        position = attribute.end()
        if len(attribute[1]) <= 4 and (name := attribute[1].lower()) in _KEPT_ATTRIBUTES and name not in attributes:
            value = next((each for each in attribute.group(2, 3, 4) if each is not None), "")
            attributes[name] = _unescape(value[: 2 * MAX_URL])
    return position, attributes


def _skip(markup: str, position: int) -> int:
    space = _SPACE.match(markup, position)
    return position if space is None else space.end()


def _unescape(text: str) -> str:
    return html.unescape(_LONG_REFERENCE.sub("\ufffd", text)) if "&" in text else text


@dataclass(kw_only=True, slots=True)
class _Writer:
    """Collects the text of a page."""

    base: str
    title: str = ""
    parts: list[str] = field(default_factory=list)
    links: dict[str, int] = field(default_factory=dict)
    # The number of each link as it is written, so that none is resolved twice, and how many more are resolved at all:
    # against a base of many parts, each takes time.
    numbers: dict[str, int | None] = field(default_factory=dict)
    resolvable: int = MAX_LINKS
    # The number of the link that the text is in, and how many parts there were before it.
    link: tuple[int, int] | None = None
    has_base: bool = False
    preformatted: int = 0
    skipped: list[str] = field(default_factory=list)

    def write(self, kind: str, name: str, attributes: Mapping[str, str]) -> None:
        if self.skipped:
            self._leave_skipped(kind, name)
        elif kind == "text":
            self._add_text(_unescape(name))
        elif kind == "title":
            self.title = self.title or _SPACES.sub(" ", _unescape(name[:1_000])).strip()[:300]
        elif kind == "start":
            self._start(name, attributes)
        else:
            self._end(name)

    def build(self) -> HtmlText:
        self._end_link()
        lines = "".join(self.parts).translate(CONTROLS).split("\n")
        text = _EMPTY_LINES.sub("\n\n", "\n".join(each.rstrip() for each in lines)).strip()
        return HtmlText(title=self.title.translate(CONTROLS), text=text, links=tuple(self.links))

    def _leave_skipped(self, kind: str, name: str) -> None:
        if kind == "start" and name == self.skipped[-1]:
            self.skipped.append(name)
        elif kind == "end" and name == self.skipped[-1]:
            self.skipped.pop()

    def _add_text(self, text: str) -> None:
        if not self.preformatted:
            text = _SPACES.sub(" ", text)
            if self._ends_with_space():
                text = text.removeprefix(" ")
        if text:
            self.parts.append(text)

    def _ends_with_space(self) -> bool:
        return not self.parts or self.parts[-1][-1] in " \n"

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        if name in _SKIPPED_ELEMENTS:
            self.skipped.append(name)
        elif name in _BLOCKS or name in _PARAGRAPHS:
            self._break(name)
            if name == "li":
                self.parts.append("- ")
            elif name == "pre":
                self.preformatted += 1
            elif name in _HEADINGS:
                self.parts.append(_HEADINGS[name])
        elif name in _CELLS:
            if self.parts and self.parts[-1][-1] != "\n":
                self.parts.append(" | ")
        elif name == "a":
            self._end_link()
            self._begin_link(attributes.get("href", ""))
        elif name == "img" and (alt := attributes.get("alt", "").strip()):
            self._add_text(f" (image: {alt}) ")
        elif name == "base" and "href" in attributes and not self.has_base:
            self.base, self.has_base = self._resolve(attributes["href"]) or self.base, True
            self.numbers.clear()

    def _end(self, name: str) -> None:
        if name == "a":
            self._end_link()
        elif name in _BLOCKS or name in _PARAGRAPHS:
            if name == "pre":
                self.preformatted = max(0, self.preformatted - 1)
            self._break(name)

    def _break(self, name: str) -> None:
        if name in _PARAGRAPHS:
            self.parts.append("\n\n")
        elif not self.parts or self.parts[-1][-1] != "\n" or name == "br":
            self.parts.append("\n")

    def _begin_link(self, href: str) -> None:
        if href.lstrip()[:1] in ("", "#"):
            return
        if href not in self.numbers and self.resolvable > 0:
            self.resolvable -= 1
            url = self._resolve(href)
            self.numbers[href] = None if url is None else self.links.setdefault(url, len(self.links) + 1)
        number = self.numbers.get(href)
        if number is not None:
            self.link = number, len(self.parts)

    def _end_link(self) -> None:
        """Put the number behind the text of a link, if it has any."""
        if self.link is not None:
            number, count = self.link
            self.link = None
            if any(not each.isspace() for each in self.parts[count:]):
                self.parts.append(f" [{number}]")

    def _resolve(self, href: str) -> str | None:
        href = href.strip()
        if not href or href[0] == "#" or len(href) > MAX_URL:
            return None
        try:
            url = urljoin(self.base, href).partition("#")[0]
        except ValueError:
            return None
        is_page = url.startswith(("https://", "http://")) and len(url) <= MAX_URL and url.isprintable()
        return url if is_page else None
