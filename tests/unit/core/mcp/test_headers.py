"""Values in headers, held against how the official SDK reads them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import decode_header_value, validate_mcp_param_headers

from deputize.core.errors import CredentialMissing
from deputize.core.mcp.headers import (
    build_credential_header,
    build_param_headers,
    encode_header_value,
    read_header_params,
)


@given(st.text())
def test_any_text_survives_header_encoding(text: str) -> None:
    sent = encode_header_value(text)
    assert sent.isascii()
    assert "\n" not in sent
    assert "\r" not in sent
    assert decode_header_value(sent.strip(" \t")) == text


@given(st.text(), st.one_of(st.integers(-(2**53), 2**53), st.none()), st.booleans())
def test_repeated_arguments_are_what_a_server_of_the_sdk_expects(name: str, number: int | None, flag: bool) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "x-mcp-header": "Name"},
            "deep": {
                "type": "object",
                "properties": {
                    "number": {"type": "integer", "x-mcp-header": "Number"},
                    "flag": {"type": "boolean", "x-mcp-header": "Flag"},
                },
            },
        },
    }
    arguments = {"name": name, "deep": {"number": number, "flag": flag}}
    assert (
        validate_mcp_param_headers(schema, arguments, build_param_headers(read_header_params(schema), arguments))
        is None
    )


@pytest.mark.parametrize(
    "schema",
    [
        None,
        {"type": "object", "x-mcp-header": "Root"},
        {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}},
        {"properties": {"a": {"type": ["string"], "x-mcp-header": "A"}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": "A\r\nevil: yes"}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": 7}}},
        {"properties": {n: {"type": "string", "x-mcp-header": t} for n, t in (("a", "Same"), ("b", "same"))}},
    ],
)
def test_a_wish_that_the_protocol_does_not_know_repeats_nothing(schema: Any) -> None:
    assert read_header_params(schema) == {}


def test_a_credential_that_would_break_out_of_its_header_is_not_sent() -> None:
    assert build_credential_header("Authorization", "abc") == ("Authorization", "Bearer abc")
    assert build_credential_header("X-Key", "a b") == ("X-Key", "a b")
    for value in ("", "key7\r\nb: c", "key7ü", " key7"):
        with pytest.raises(CredentialMissing) as raised:
            build_credential_header("X-Key", value)
        assert "key7" not in raised.value.message
