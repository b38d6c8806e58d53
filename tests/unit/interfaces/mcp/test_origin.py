"""Pages of other sites are not answered, however the gateway's own address is written."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from deputize.core.errors import PermissionDenied
from deputize.core.settings import IdentitySettings
from deputize.interfaces.mcp.endpoint import _require_own_origin


def make_gateway(public_url: str | None) -> Any:
    settings = SimpleNamespace(
        identity=IdentitySettings.model_construct(public_url=public_url), approvals=SimpleNamespace(console_url=None)
    )
    return cast(Any, SimpleNamespace(settings=settings))


@pytest.mark.parametrize("public_url", [None, "gateway.example.com", "https://gateway.example.com", "https://"])
@pytest.mark.parametrize("origin", [b"null", b"", b"https://evil.example.com", b"http://[", b"\xff", b"file://"])
def test_a_page_that_does_not_say_where_it_is_from_is_refused(public_url: str | None, origin: bytes) -> None:
    with pytest.raises(PermissionDenied):
        _require_own_origin(make_gateway(public_url), {b"origin": origin})


def test_our_own_pages_and_those_of_this_machine_are_answered() -> None:
    for origin in (b"https://gateway.example.com", b"http://localhost:3000", b"http://127.0.0.1"):
        _require_own_origin(make_gateway("https://gateway.example.com"), {b"origin": origin})
