"""Which texts are addresses of servers."""

import pytest
from pydantic import ValidationError

from deputize.core.http_urls import is_http_url
from deputize.core.settings import McpServerSettings


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080/mcp", "https://a.example.com", "HTTPS://[::1]:9/x?y=1"])
def test_what_can_be_asked_is_one(url: str) -> None:
    assert is_http_url(url)
    assert McpServerSettings(name="shop", url=url).url == url


@pytest.mark.parametrize(
    "url",
    [
        "", "shop", "htp:/x", "ftp://h/x", "http://", "http:///x", "http://h:x/", "http://h:99999/", "http://h:0/",
        "http://me:pw@h/", "http://me@h/", "http://h/a b", "http://h/\x1b[2J", "http://h/\r\nX: y", "http://[::1",
        "http://sh\u00f6p.example.com/", " http://h/",
    ],
)  # fmt: skip
def test_what_cannot_be_asked_as_it_stands_is_none(url: str) -> None:
    assert not is_http_url(url)
    with pytest.raises(ValidationError):
        McpServerSettings(name="shop", url=url)


@pytest.mark.parametrize("header", ["", "X: y", "X\r\nY", "\u00dc"])
def test_a_header_that_carries_a_credential_has_the_name_of_one(header: str) -> None:
    with pytest.raises(ValidationError):
        McpServerSettings(name="shop", url="https://a.example.com", header=header)
