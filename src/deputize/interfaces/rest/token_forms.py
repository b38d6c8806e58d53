"""Parse the forms of the token endpoint: token exchange (RFC 8693), and client credentials with an assertion."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import orjson

from deputize.core.caller import Capability
from deputize.core.contract.contract import Effects
from deputize.core.contract.names import to_full_name
from deputize.core.delegation import DelegationRequest
from deputize.core.errors import MalformedRequest, Problem
from deputize.core.grant_constraints import MAX_CONSTRAINTS_BYTES
from deputize.interfaces.json_body import read_json

CLIENT_CREDENTIALS_GRANT_TYPE = "client_credentials"
CLIENT_PARAMETERS = frozenset({"client_assertion", "client_assertion_type"})
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_TOKEN_TYPE_PREFIX = "urn:ietf:params:oauth:token-type:"
TOKEN_TYPES = (f"{_TOKEN_TYPE_PREFIX}access_token", f"{_TOKEN_TYPE_PREFIX}jwt")
_MAX_TOOLS_BYTES = 65_536
_CLIENT_FORM = frozenset({"grant_type", "client_id", "scope", "resource", "audience", *CLIENT_PARAMETERS})


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientTokenRequest:
    """A request of an operator client for a token."""

    assertion: bytes = field(repr=False)
    client_id: str | None
    scopes: frozenset[str] | None


def parse_client_request(fields: dict[str, str]) -> ClientTokenRequest:
    """Parse a request for client credentials; a client authenticates with `private_key_jwt`, and in no other way."""
    _require_no_others(fields, fields.keys() - _CLIENT_FORM)
    if fields.get("client_assertion_type") != ASSERTION_TYPE or not fields.get("client_assertion"):
        raise MalformedRequest(
            f"a client must authenticate with client_assertion and client_assertion_type {ASSERTION_TYPE}",
            details={"field": "client_assertion"},
        )
    scope = fields.get("scope")
    return ClientTokenRequest(
        assertion=fields["client_assertion"].encode(),
        client_id=fields.get("client_id"),
        scopes=None if scope is None else frozenset(scope.split()),
    )


def _require_no_others(fields: dict[str, str], others: Collection[str]) -> None:
    other = next((name for name in fields if name in others), None)
    if other is not None:
        raise MalformedRequest(f"{other} does not belong to this grant_type", details={"field": other})


def parse_exchange_request(fields: dict[str, str], max_depth: int) -> DelegationRequest:
    _require_no_others(fields, CLIENT_PARAMETERS)
    for name in ("subject_token", "actor_token"):
        kind = fields.get(f"{name}_type")
        if (name in fields) != (kind is not None) or (kind is not None and kind not in TOKEN_TYPES):
            message = f"{name} and {name}_type go together, and the type is one of {', '.join(TOKEN_TYPES)}"
            raise MalformedRequest(message, details={"field": f"{name}_type"})
    if "subject_token" not in fields:
        raise MalformedRequest("subject_token is missing", details={"field": "subject_token"})
    if fields.get("requested_token_type", TOKEN_TYPES[0]) not in TOKEN_TYPES:
        raise MalformedRequest("only access tokens are issued", details={"field": "requested_token_type"})
    if "agent" not in fields and "actor_token" not in fields:
        raise MalformedRequest(
            "agent or actor_token is missing: name the agent that receives the token", details={"field": "agent"}
        )
    scope = fields.get("scope")
    return DelegationRequest(
        agent=fields.get("agent", ""),
        scopes=None if scope is None else frozenset(scope.split()),
        tools=_parse_tools(fields, max_depth),
        ceiling=_parse_ceiling(fields),
        task=fields.get("task"),
        constraints=_parse_constraints(fields, max_depth),
        lifetime=_parse_lifetime(fields),
    )


def _parse_json_field(fields: dict[str, str], name: str, max_bytes: int, max_depth: int) -> Any:
    text = fields[name].encode()
    if len(text) > max_bytes:
        raise MalformedRequest(f"{name} is longer than {max_bytes} bytes", details={"field": name})
    try:
        return read_json(text, max_depth)
    except Problem as problem:
        raise MalformedRequest(f"{name}: {problem.message}", details={"field": name}) from None


def _parse_tools(fields: dict[str, str], max_depth: int) -> tuple[Capability, ...] | None:
    if "tools" not in fields:
        return None
    entries = _parse_json_field(fields, "tools", _MAX_TOOLS_BYTES, max_depth)
    if not isinstance(entries, list) or not all(map(_is_tool_entry, entries)):
        raise MalformedRequest("tools is a list of objects with tool_id and version_range", details={"field": "tools"})
    return tuple(
        Capability(tool=to_full_name(each["tool_id"]), versions=each.get("version_range", "*")) for each in entries
    )


def _is_tool_entry(value: Any) -> bool:
    if not isinstance(value, dict) or not value.keys() <= {"tool_id", "version_range"}:
        return False
    name, versions = value.get("tool_id"), value.get("version_range", "*")
    return isinstance(name, str) and 0 < len(name) <= 97 and isinstance(versions, str) and 0 < len(versions) <= 64


def _parse_ceiling(fields: dict[str, str]) -> Effects | None:
    try:
        return Effects(fields["ceiling"]) if "ceiling" in fields else None
    except ValueError:
        raise MalformedRequest("ceiling is read, write or destructive", details={"field": "ceiling"}) from None


def _parse_constraints(fields: dict[str, str], max_depth: int) -> bytes | None:
    if "constraints" not in fields:
        return None
    value = _parse_json_field(fields, "constraints", MAX_CONSTRAINTS_BYTES, max_depth)
    if not isinstance(value, dict):
        raise MalformedRequest("constraints is a JSON object", details={"field": "constraints"})
    return orjson.dumps(value)


def _parse_lifetime(fields: dict[str, str]) -> int | None:
    text = fields.get("lifetime")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise MalformedRequest("lifetime is a whole number of seconds", details={"field": "lifetime"})
    return int(text)
