"""What an answer says about further pages."""

from typing import Any

import orjson
import pytest

from deputize.catalog.importers.openapi.contracts import build_service
from deputize.catalog.importers.openapi.document import parse_document
from deputize.catalog.importers.openapi.pagination import find_pagination
from deputize.core.contract.http_request import HttpRequest
from deputize.core.contract.tools import HttpTool
from deputize.core.outcome import Result
from deputize.execute.drivers.http_pagination import add_pagination, read_pagination
from tests.support.openapi_service import make_document, make_service

pytestmark = pytest.mark.requirement("EXE-1")
NEXT = '<https://a.example/x?page=1>; rel="prev", <https://a.example/x?page=3&q=a>; rel="next"'


def make_tool(*names: str) -> HttpTool:
    parameters = [
        {"argument": each, "name": each, "place": "query", "style": "form", "explode": True} for each in names
    ]
    request = HttpRequest.model_validate({"method": "GET", "path": "/x", "parameters": parameters})
    contract = build_service(make_service(), parse_document(orjson.dumps(make_document()))).contracts["getOrder"]
    mappings = {"openapi": {"pagination": find_pagination("get", parameters)}}
    contract = contract.model_copy(update={"external_mappings": mappings})
    return HttpTool(contract=contract, service="orders", request=request, pagination=read_pagination(contract))


def read_pages(names: str, body: Any, link: str = "", **arguments: Any) -> tuple[Any, ...] | None:
    result = add_pagination(make_tool(*names.split()), arguments, {"status": 200}, body, link)
    return (result.cursor, result.has_more, result.total_count) if isinstance(result, Result) else None


@pytest.mark.parametrize(
    ("names", "style"),
    [("limit pageToken", "cursor"), ("page per_page", "page"), ("skip top", "offset"), ("page cursor", "cursor"),
     ("q limit", None)],
)  # fmt: skip
def test_the_parameters_of_pages_are_recognized(names: str, style: str | None) -> None:
    pagination = make_tool(*names.split()).pagination
    assert (None if pagination is None else pagination.style) == style


@pytest.mark.parametrize(
    ("names", "body", "link", "arguments", "pages"),
    [
        ("page", [], NEXT, {}, ("3", True, None)),
        ("page", [], '<https://a.example/x?page=1>; rel="first"', {"page": 3}, (None, False, None)),
        ("page", [], "<https://a.example/x.css>; rel=preload", {}, None),
        ("q", [], NEXT, {}, (None, True, None)),
        ("q", {"next_cursor": "abc"}, "", {}, None),
        ("cursor", {"next_cursor": "abc", "total": 7}, "", {}, ("abc", True, 7)),
        ("cursor", {"response_metadata": {"next_cursor": ""}}, "", {}, (None, False, None)),
        ("after", {"pageInfo": {"endCursor": "z", "hasNextPage": False}}, "", {}, (None, False, None)),
        ("after", {"pageInfo": {"hasNextPage": True, "endCursor": "z"}}, "", {}, ("z", True, None)),
        ("page", {"next": "https://a.example/x?page=3", "count": 9}, "", {}, ("3", True, None)),
        ("page", {"next": None}, "", {"page": 3}, (None, False, None)),
        ("page", {"has_more": True}, "", {"page": 3}, ("4", True, None)),
        ("page", {"has_more": True}, "", {}, (None, True, None)),
        ("offset limit", {"has_more": True}, "", {"limit": 20}, ("20", True, None)),
        ("offset limit", {"has_more": True}, "", {"offset": 40, "limit": 20}, ("60", True, None)),
        ("page", {"total_count": True}, "", {}, None),
        ("page", [], "<http://[/x>; rel=next", {}, (None, True, None)),
        ("cursor", "text", "", {}, None),
    ],
)  # fmt: skip
def test_pages_are_read_from_links_and_bodies(
    names: str, body: Any, link: str, arguments: dict[str, Any], pages: tuple[Any, ...] | None
) -> None:
    assert read_pages(names, body, link, **arguments) == pages
