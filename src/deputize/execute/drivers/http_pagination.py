"""Find out whether a service has more to give, and with which value of which argument: the envelope's `pagination`.

Sources are the `Link` header (RFC 8288), and the fields of the body that services use. Nothing is fetched: a caller
goes on by a call of its own, which is authorized and recorded like the first. An address is read only for the value of
the operation's own parameter, and never followed.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from pydantic import ValidationError

from deputize.core.contract.contract import Contract
from deputize.core.contract.http_request import HttpPagination, normalize_parameter_name
from deputize.core.contract.tools import HttpTool
from deputize.core.outcome import Result

_LINK: Final = re.compile(r"<([^<>]*)>([^<]*)")
_RELATIONS: Final = re.compile(r""";\s*rel\s*=\s*["']?([a-z ]{1,100})""", re.IGNORECASE)
_PAGE_RELATIONS: Final = frozenset({"next", "prev", "previous", "first", "last"})
_MAX_LINK_LENGTH: Final = 8_000
_MAX_CURSOR_LENGTH: Final = 2_000
# Objects of a body that hold what is said about pages, beside the body itself.
_HOLDERS: Final = frozenset(
    {"pagination", "paging", "page", "pageinfo", "meta", "metadata", "responsemetadata", "links"}
)
_CURSORS: Final = frozenset(
    {"nextcursor", "nextpagetoken", "nexttoken", "continuationtoken", "nextmarker", "continue", "endcursor"}
)
_MORE: Final = frozenset({"hasmore", "hasnextpage", "hasnext"})
_TOTALS: Final = frozenset({"total", "totalcount", "totalresults", "totalitems", "totalsize"})


@dataclass(kw_only=True, slots=True)
class _Pages:
    cursor: str | None = None
    has_more: bool | None = None
    total_count: int | None = None


def read_pagination(contract: Contract) -> HttpPagination | None:
    """Read how an operation is continued; None if it is not, or if another release wrote what this one cannot read."""
    facts = contract.external_mappings.get("openapi")
    try:
        return HttpPagination.model_validate(facts["pagination"]) if isinstance(facts, dict) else None
    except (KeyError, ValidationError):
        return None


def add_pagination(
    tool: HttpTool, arguments: Mapping[str, Any], result: dict[str, Any], body: Any, link: str
) -> dict[str, Any] | Result:
    """Return the result with what the body and the `Link` header say about further pages, if they say anything."""
    pages = _Pages()
    links = _parse_links(link)
    if links:
        _take_link(pages, tool, links.get("next"))
    if tool.pagination is not None:
        for name, value in _iterate_page_fields(body):
            _take_field(pages, tool, name, value)
        if pages.has_more and pages.cursor is None:
            pages.cursor = _count_on(tool, arguments)
    if pages.has_more is False:
        pages.cursor = None
    if pages.has_more is None and pages.total_count is None:
        return result
    return Result(payload=result, cursor=pages.cursor, has_more=pages.has_more, total_count=pages.total_count)


def _parse_links(header: str) -> dict[str, str]:
    """Parse the addresses of other pages by their relation; other relations are left out."""
    return {
        relation: target
        for target, parameters in _LINK.findall(header[:_MAX_LINK_LENGTH])
        for match in _RELATIONS.finditer(parameters)
        for relation in match[1].lower().split()
        if relation in _PAGE_RELATIONS
    }


def _take_link(pages: _Pages, tool: HttpTool, target: str | None) -> None:
    """Take what an address of the next page says; None is an address that is missing, so that this page is the last."""
    pages.has_more = target is not None
    if target is None or tool.pagination is None:
        return
    argument = tool.pagination.argument
    name = next((each.name for each in tool.request.parameters if each.argument == argument), argument)
    try:
        values = parse_qs(urlsplit(target).query, max_num_fields=100).get(name, [])
    except ValueError:
        return
    if values and len(values[0]) <= _MAX_CURSOR_LENGTH:
        pages.cursor = values[0]


def _iterate_page_fields(body: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(body, dict):
        return
    for key, value in body.items():
        name = normalize_parameter_name(key)
        if name in _HOLDERS and isinstance(value, dict):
            yield from ((normalize_parameter_name(inner), each) for inner, each in value.items())
        else:
            yield name, value


def _take_field(pages: _Pages, tool: HttpTool, name: str, value: Any) -> None:
    if name in _MORE and isinstance(value, bool):
        pages.has_more = value
    elif name in _TOTALS and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        pages.total_count = value
    elif name == "next" and (value is None or isinstance(value, str)):
        _take_link(pages, tool, value or None)
    elif name in _CURSORS and tool.pagination is not None and tool.pagination.style == "cursor":
        text = "" if value is None else str(value) if isinstance(value, str | int) else None
        if text is not None and len(text) <= _MAX_CURSOR_LENGTH:
            pages.cursor = text or None
            # An end cursor is there on the last page, too: has_next_page says whether it leads on.
            pages.has_more = bool(text) if pages.has_more is None else pages.has_more


def _count_on(tool: HttpTool, arguments: Mapping[str, Any]) -> str | None:
    """Compute the next page or offset from the arguments; None if they do not say where this page began."""
    pagination = tool.pagination
    if pagination is None or pagination.style == "cursor":
        return None
    current = arguments.get(pagination.argument)
    step = 1 if pagination.style == "page" else arguments.get(pagination.limit or "")
    if pagination.style == "offset" and current is None:
        current = 0
    is_counted = all(isinstance(each, int) and not isinstance(each, bool) for each in (current, step))
    return str(current + step) if is_counted else None  # type: ignore[operator]  # both are integers here
