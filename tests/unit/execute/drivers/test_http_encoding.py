"""Test the encoding of arguments: the styles of OpenAPI, and values that try to call something else."""

from typing import Any

import pytest

from deputize.core.contract.http_request import FurtherCredential, HttpCredential, HttpParameter, HttpRequest
from deputize.core.errors import SemanticViolation
from deputize.execute.drivers.http_encoding import EncodedRequest, encode_request

pytestmark = pytest.mark.requirement("EXE-1")
COLORS = ["blue", "black"]
POINT = {"x": 1, "y": True}


def encode(value: Any, place: str, style: str, explode: bool) -> EncodedRequest:
    parameter = HttpParameter.model_validate(
        {"argument": "v", "name": "v", "place": place, "style": style, "explode": explode}
    )
    path = "/a/{v}/b" if place == "path" else "/a"
    return encode_request(HttpRequest(method="GET", path=path, parameters=(parameter,)), {"v": value})


@pytest.mark.parametrize(
    ("value", "style", "explode", "query"),
    [
        ("a b&c=d", "form", True, ["v=a%20b%26c%3Dd"]),
        (1.5, "form", True, ["v=1.5"]),
        (False, "form", True, ["v=false"]),
        (COLORS, "form", True, ["v=blue", "v=black"]),
        (COLORS, "form", False, ["v=blue,black"]),
        (["a,b", "c"], "form", False, ["v=a%2Cb,c"]),
        (COLORS, "spaceDelimited", False, ["v=blue%20black"]),
        (COLORS, "pipeDelimited", False, ["v=blue%7Cblack"]),
        (POINT, "form", True, ["x=1", "y=true"]),
        (POINT, "form", False, ["v=x,1,y,true"]),
        (POINT, "deepObject", True, ["v[x]=1", "v[y]=true"]),
        (None, "form", True, []),
    ],
)  # fmt: skip
def test_queries_are_written_in_the_style_of_the_parameter(
    value: Any, style: str, explode: bool, query: list[str]
) -> None:
    assert list(encode(value, "query", style, explode).query) == query


@pytest.mark.parametrize(
    ("value", "explode", "path"),
    [
        ("7", False, "/a/7/b"), ("a?x#y%", False, "/a/a%3Fx%23y%25/b"),
        ("{v}", False, "/a/%7Bv%7D/b"), (COLORS, False, "/a/blue,black/b"), (POINT, True, "/a/x=1,y=true/b"),
        ("a..b", False, "/a/a..b/b"), ("é", False, "/a/%C3%A9/b"),
    ],
)  # fmt: skip
def test_a_value_in_the_path_stays_one_part_of_it(value: Any, explode: bool, path: str) -> None:
    assert encode(value, "path", "simple", explode).path == path


@pytest.mark.parametrize(
    "value",
    ["", ".", "..", "../admin", "a/../b", "a\\..\\b", "./x", [], ["a", ".."], [""], None, "1/export", "/", "1\\export",
     ["a", "b/c"], {"a/b": 1}, {"a": "b\\c"}, {"": 1}, {"..": 1}],
)  # fmt: skip
def test_a_value_that_changes_the_path_is_refused(value: Any) -> None:
    with pytest.raises(SemanticViolation, match=r"the argument v .*slash") as refused:
        encode(value, "path", "simple", False)
    assert refused.value.nothing_happened


@pytest.mark.parametrize("value", ["a\r\nX-Admin: 1", "a\nb", "é", "\x00", " x", "x ", " "])
def test_a_value_that_is_no_header_is_refused(value: str) -> None:
    assert encode("eu west", "header", "simple", False).headers == {"v": "eu west"}
    with pytest.raises(SemanticViolation):
        encode(value, "header", "simple", False)


@pytest.mark.parametrize(("value", "style"), [([[1]], "form"), ({"a": {"b": 1}}, "deepObject"), ([1], "deepObject")])
def test_a_value_that_a_style_cannot_hold_is_refused(value: Any, style: str) -> None:
    with pytest.raises(SemanticViolation):
        encode(value, "query", style, True)


@pytest.mark.parametrize(
    "key",
    ["api_key", "API_KEY", "apiKey", "api_key[]", "appId", "app_id", "limit", "sort[by]", "_method", "_METHOD",
     "X-HTTP-Method-Override"],
)  # fmt: skip
def test_a_member_of_an_object_cannot_be_the_credential_or_another_parameter(key: str) -> None:
    parameters = tuple(
        HttpParameter.model_validate(
            {"argument": name, "name": name, "place": "query", "style": style, "explode": True}
        )
        for name, style in (("filter", "form"), ("limit", "form"), ("sort", "deepObject"))
    )
    credential = HttpCredential(place="query", name="api_key")
    further = FurtherCredential(place="query", name="appId", secret="orders-app")
    request = HttpRequest(
        method="GET", path="/a", parameters=parameters, credential=credential, further_credentials=(further,)
    )
    assert encode_request(request, {"filter": {"color": "red", "filter": 1}}).query == ("color=red", "filter=1")
    with pytest.raises(SemanticViolation, match="the argument filter") as refused:
        encode_request(request, {"filter": {"color": "red", key: "x"}, "limit": 5})
    assert refused.value.nothing_happened


def test_no_field_of_a_form_is_the_method_of_the_request() -> None:
    request = HttpRequest(method="POST", path="/a", body="application/x-www-form-urlencoded")
    with pytest.raises(SemanticViolation, match="_method"):
        encode_request(request, {"body": {"a": 1, "_method": "DELETE"}})


@pytest.mark.parametrize(
    ("media_type", "value", "body"),
    [
        ("application/json", {"a": [1, None]}, b'{"a":[1,null]}'),
        ("application/x-www-form-urlencoded", {"a": "x y", "b": [1, 2]}, b"a=x%20y&b=1&b=2"),
        ("text/plain", "héllo", "héllo".encode()),
    ],
)  # fmt: skip
def test_bodies_are_written_as_their_media_type_says(media_type: str, value: Any, body: bytes) -> None:
    request = HttpRequest(method="POST", path="/a", body=media_type)
    encoded = encode_request(request, {"body": value})
    assert (encoded.body, encoded.headers) == (body, {"Content-Type": media_type})
    assert encode_request(request, {}).body is None


@pytest.mark.parametrize(
    ("media_type", "value", "body"),
    [
        ("application/octet-stream", "AAH/", b"\x00\x01\xff"),
        ("image/png", "", b""),
        ("application/JSON", {"a": 1}, b'{"a":1}'),
        ("application/merge-patch+json", [1], b"[1]"),
        ("text/plain", "AAH/", b"AAH/"),
    ],
)
def test_the_media_type_says_how_a_body_is_written(media_type: str, value: Any, body: bytes) -> None:
    request = HttpRequest(method="PUT", path="/a", body=media_type)
    encoded = encode_request(request, {"body": value})
    assert (encoded.body, encoded.headers) == (body, {"Content-Type": media_type})


@pytest.mark.parametrize("value", ["AAH", "A\nAH/", "é", "-_==", {"a": 1}, 7, None])
def test_bytes_that_are_not_base64_are_not_sent(value: Any) -> None:
    request = HttpRequest(method="PUT", path="/a", body="application/octet-stream")
    with pytest.raises(SemanticViolation, match="base64"):
        encode_request(request, {"body": value})
