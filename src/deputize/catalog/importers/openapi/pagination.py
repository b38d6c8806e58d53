"""Recognize the parameters by which a read is continued: a cursor, the number of a page, or an offset."""

from collections.abc import Mapping, Sequence
from typing import Final

from deputize.catalog.importers.openapi.document import Json
from deputize.core.contract.http_request import normalize_parameter_name

# From the most to the least certain; names are compared without case, hyphens and underscores.
_STYLES: Final[Mapping[str, frozenset[str]]] = {
    "cursor": frozenset(
        {"cursor", "pagetoken", "nexttoken", "nextpagetoken", "continuationtoken", "startingafter", "continue",
         "marker", "after", "nextcursor"}
    ),
    "page": frozenset({"page", "pagenumber", "pageno", "pageindex"}),
    "offset": frozenset({"offset", "skip", "startat", "startindex"}),
}  # fmt: skip
_LIMITS: Final = frozenset({"limit", "perpage", "pagesize", "size", "maxresults", "top", "first", "count"})


def find_pagination(method: str, parameters: Sequence[Json]) -> Json | None:
    """Find how the operation is continued, from its query parameters; None if it is not."""
    if method.upper() != "GET":
        return None
    names = {
        each["argument"]: normalize_parameter_name(each["name"]) for each in parameters if each["place"] == "query"
    }
    limit = next((argument for argument, name in names.items() if name in _LIMITS), None)
    for style, style_names in _STYLES.items():
        for argument, name in names.items():
            if name in style_names:
                return {"style": style, "argument": argument, "limit": limit}
    return None
