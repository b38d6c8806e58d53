"""Serve OAuth: the gateway's metadata (RFC 9728, RFC 8414), its keys (JWKS), and token exchange (RFC 8693).

Refusals of the token endpoint have the form of RFC 6749, with the problem that other routes return inside.
"""

from typing import Any, Literal
from urllib.parse import parse_qsl

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.caller import Capability
from deputize.core.contract.contract import Effects
from deputize.core.contract.names import to_full_name
from deputize.core.delegation import (
    EXCHANGE_SCOPES_RULE,
    TOKEN_EXCHANGE_GRANT_TYPE,
    DelegationRequest,
)
from deputize.core.errors import (
    ExchangeRefused,
    InternalError,
    MalformedRequest,
    NoSuchRoute,
    PermissionProblem,
    Problem,
    Unavailable,
    UnsupportedMedia,
)
from deputize.core.grant_constraints import MAX_CONSTRAINTS_BYTES
from deputize.core.outcome import build_problem_fields
from deputize.core.settings.urls import CLIENT_METADATA_PATH, MCP_PATH, RESOURCE_METADATA_PATH, TOKEN_PATH
from deputize.interfaces.asgi_http import (
    ClientDisconnect,
    hide_internal_error,
    make_retry_after_header,
    parse_headers,
    read_body,
    read_trace_id,
)
from deputize.interfaces.json_body import read_json
from deputize.interfaces.rest.common import CurrentGateway, make_json_response
from deputize.interfaces.rest.models import ProblemModel
from deputize.interfaces.rest.openapi import describe_problems
from deputize.operations.gateway import Gateway, IssuedToken

router = APIRouter(tags=["identity"])

FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
_TOKEN_TYPE_PREFIX = "urn:ietf:params:oauth:token-type:"
_TOKEN_TYPES = (f"{_TOKEN_TYPE_PREFIX}access_token", f"{_TOKEN_TYPE_PREFIX}jwt")
_TARGET_RULE, _GRANT_TYPE_RULE = "exchange-target", "exchange-grant-type"
_MAX_FIELDS = 64
_MAX_TOOLS_BYTES = 65_536
_REPEATABLE_PARAMETERS = frozenset({"resource", "audience"})
# An unknown parameter may be a misspelt limit, so it is refused, although RFC 6749 would ignore it.
_PARAMETERS: dict[str, str] = {
    "grant_type": f"`{TOKEN_EXCHANGE_GRANT_TYPE}`.",
    "subject_token": "A token for this gateway: the authority to delegate.",
    "subject_token_type": "The type of the subject token: an access token or a JWT.",
    "actor_token": "The agent that receives the token: a token of a trusted issuer, or one signed by the agent's DID.",
    "actor_token_type": "The type of the actor token.",
    "requested_token_type": "Only access tokens are issued.",
    "agent": "The agent that receives the token, if the holder of the subject token vouches for its name.",
    "scope": "Scopes of the subject token; by default, all but the administrator's.",
    "tools": "A JSON list of `{tool_id, version_range}`, among the tools of the subject token.",
    "ceiling": "The worst effect allowed: `read`, `write` or `destructive`.",
    "task": "The purpose of the delegation; it cannot be changed later.",
    "constraints": "A JSON object of at most 4 KB: conditions on each call (`environments`, `arguments`).",
    "lifetime": "The lifetime in seconds; never beyond the end of the subject token.",
    "resource": "This gateway.",
    "audience": "This gateway.",
    "client_id": "Ignored: the subject token is the authority.",
}


class ProtectedResourceModel(BaseModel):
    resource: str
    resource_name: str
    bearer_methods_supported: list[str]
    authorization_servers: list[str] | None = None
    scopes_supported: list[str] | None = None


class ClientMetadataModel(BaseModel):
    client_id: str
    client_name: str
    client_uri: str
    redirect_uris: list[str]
    grant_types: list[str]
    response_types: list[str]
    token_endpoint_auth_method: str
    application_type: str


class AuthorizationServerModel(BaseModel):
    issuer: str
    token_endpoint: str
    jwks_uri: str
    grant_types_supported: list[str]
    response_types_supported: list[str]
    token_endpoint_auth_methods_supported: list[str]


class JwksModel(BaseModel):
    keys: list[dict[str, str]]


class TokenResponseModel(BaseModel):
    access_token: str
    issued_token_type: str
    token_type: Literal["Bearer"]
    expires_in: int = Field(ge=1)
    scope: str
    grant_id: str = Field(description="The id of the delegation; revoking it also revokes all made from it.")


class OAuthErrorModel(BaseModel):
    error: Literal[
        "invalid_request", "invalid_scope", "invalid_target", "unsupported_grant_type", "temporarily_unavailable",
        "server_error",
    ]  # fmt: skip
    error_description: str
    problem: ProblemModel


_PUBLIC_PROBLEMS = describe_problems(NoSuchRoute, common=(InternalError, Unavailable))
_ERROR_DESCRIPTION = "An error in the form of RFC 6749; `problem` is the problem that other routes return."


@router.get(
    RESOURCE_METADATA_PATH,
    summary="Show the protected resource metadata",
    response_model=ProtectedResourceModel,
    responses=_PUBLIC_PROBLEMS,
)
async def resource(gateway: CurrentGateway) -> Response:
    """Show which issuers' tokens are accepted (RFC 9728), without authentication. A 401 names this URL."""
    return make_json_response(gateway.metadata.describe_resource())


@router.get(
    RESOURCE_METADATA_PATH + MCP_PATH,
    summary="Show the protected resource metadata of MCP",
    response_model=ProtectedResourceModel,
    responses=_PUBLIC_PROBLEMS,
)
async def mcp_resource(gateway: CurrentGateway) -> Response:
    """Show which issuers' tokens `/mcp` accepts (RFC 9728), for MCP clients to sign in."""
    return make_json_response(gateway.metadata.describe_resource(MCP_PATH))


@router.get(
    CLIENT_METADATA_PATH,
    summary="Show the client metadata",
    response_model=ClientMetadataModel,
    responses=_PUBLIC_PROBLEMS,
)
async def client(gateway: CurrentGateway) -> Response:
    """Show this gateway's client ID metadata document, for the authorization servers of MCP servers."""
    return make_json_response(gateway.metadata.describe_client())


@router.get(
    "/t/{tenant}/.well-known/oauth-authorization-server",
    summary="Show a tenant's issuer",
    response_model=AuthorizationServerModel,
    responses=_PUBLIC_PROBLEMS,
)
async def server(gateway: CurrentGateway, tenant: str) -> Response:
    """Show the issuer's metadata (RFC 8414) at the path that some clients use. Every tenant name is answered alike."""
    return make_json_response(gateway.metadata.describe_authorization_server(tenant))


@router.get(
    "/.well-known/oauth-authorization-server/t/{tenant}",
    summary="Show a tenant's issuer at its RFC 8414 path",
    response_model=AuthorizationServerModel,
    responses=_PUBLIC_PROBLEMS,
)
async def server_by_the_book(gateway: CurrentGateway, tenant: str) -> Response:
    return make_json_response(gateway.metadata.describe_authorization_server(tenant))


@router.get(
    "/t/{tenant}/jwks.json", summary="Show a tenant's public keys", response_model=JwksModel, responses=_PUBLIC_PROBLEMS
)
async def jwks(gateway: CurrentGateway, tenant: str) -> Response:
    """Show the keys that sign delegated tokens and tools' tokens; none for a tenant that has signed nothing."""
    return make_json_response(await gateway.metadata.get_jwks(tenant))


def _describe_form() -> dict[str, Any]:
    required_fields = ["grant_type", "subject_token", "subject_token_type"]
    properties = {name: {"type": "string", "description": description} for name, description in _PARAMETERS.items()}
    properties["grant_type"]["enum"] = [TOKEN_EXCHANGE_GRANT_TYPE]  # type: ignore[assignment]  # the values of a schema have several types
    schema = {"type": "object", "properties": properties, "required": required_fields, "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {FORM_MEDIA_TYPE: {"schema": schema}}}}


@router.post(
    TOKEN_PATH,
    summary="Exchange a token for a delegated one",
    response_model=TokenResponseModel,
    responses={
        **{
            status: {"model": OAuthErrorModel, "description": _ERROR_DESCRIPTION}
            for status in (400, 413, 415, 429, 500, 503)
        },
        **describe_problems(NoSuchRoute, common=()),
    },
    openapi_extra=_describe_form(),
)
async def exchange(request: Request, gateway: CurrentGateway) -> Response:
    """Exchange a token for one of an agent (RFC 8693), with fewer scopes and tools and a shorter lifetime. The
    delegation is durable before the response, and can be revoked.
    """
    trace_id, own_resource = read_trace_id(request.scope), gateway.metadata.describe_resource()["resource"]
    address = request.client.host if request.client is not None else ""
    try:
        gateway.delegations.check_address(address)
        fields = await _read_form(request, gateway, own_resource)
        exchange_request = _parse_exchange_request(fields, gateway)
        actor = fields.get("actor_token")
        delegation = await gateway.delegations.exchange_token(
            fields["subject_token"].encode(), actor.encode() if actor else None, exchange_request, address=address
        )
    except (NoSuchRoute, ClientDisconnect):
        raise
    except Problem as problem:
        return _make_error_response(problem, trace_id)
    except Exception as error:  # noqa: BLE001 -- the outermost handler: logs an unexpected error and hides it
        return _make_error_response(hide_internal_error(error, trace_id), trace_id)
    return _make_token_response(_render_token(delegation), 200)


def _render_token(delegation: IssuedToken) -> dict[str, Any]:
    return {
        "access_token": delegation.token,
        "issued_token_type": _TOKEN_TYPES[0],
        "token_type": "Bearer",
        "expires_in": delegation.seconds,
        "scope": " ".join(sorted(delegation.grant.scopes)),
        "grant_id": delegation.grant.id,
    }


async def _read_form(request: Request, gateway: Gateway, own_resource: str) -> dict[str, str]:
    """Read the parameters of the form, each at most once; only `resource` and `audience` may repeat."""
    headers = parse_headers(request.scope)
    media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
    if media != FORM_MEDIA_TYPE:
        raise UnsupportedMedia("the body is not declared as a form", advice=f"Send the body as {FORM_MEDIA_TYPE}.")
    body = await read_body(request.receive, headers, gateway.settings.server.max_body_bytes)
    try:
        pairs = parse_qsl(body.decode("ascii"), errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise MalformedRequest("the form cannot be read") from None
    fields: dict[str, str] = {}
    for name, value in pairs:
        if name not in _PARAMETERS:
            raise MalformedRequest(f"there is no parameter {name[:64]!r}; there are {', '.join(_PARAMETERS)}")
        if name in fields and name not in _REPEATABLE_PARAMETERS:
            raise MalformedRequest(f"the parameter {name} was sent more than once", details={"field": name})
        if name in _REPEATABLE_PARAMETERS:
            _require_own_resource(name, value, own_resource)
        fields[name] = value
    return fields


def _require_own_resource(name: str, value: str, own_resource: str) -> None:
    if value.removesuffix("/") != own_resource:
        raise ExchangeRefused(
            f"tokens are issued only for this gateway, and {name} names another resource",
            details={"rule": _TARGET_RULE, "resource": own_resource},
            advice="Leave the parameter out, or name this gateway.",
        )


def _parse_exchange_request(fields: dict[str, str], gateway: Gateway) -> DelegationRequest:
    if fields.get("grant_type") != TOKEN_EXCHANGE_GRANT_TYPE:
        rule = {"rule": _GRANT_TYPE_RULE} if "grant_type" in fields else {}
        raise MalformedRequest(
            f"grant_type must be {TOKEN_EXCHANGE_GRANT_TYPE}", details={"field": "grant_type", **rule}
        )
    for name in ("subject_token", "actor_token"):
        kind = fields.get(f"{name}_type")
        if (name in fields) != (kind is not None) or (kind is not None and kind not in _TOKEN_TYPES):
            message = f"{name} and {name}_type go together, and the type is one of {', '.join(_TOKEN_TYPES)}"
            raise MalformedRequest(message, details={"field": f"{name}_type"})
    if "subject_token" not in fields:
        raise MalformedRequest("subject_token is missing", details={"field": "subject_token"})
    if fields.get("requested_token_type", _TOKEN_TYPES[0]) not in _TOKEN_TYPES:
        raise MalformedRequest("only access tokens are issued", details={"field": "requested_token_type"})
    if "agent" not in fields and "actor_token" not in fields:
        raise MalformedRequest(
            "agent or actor_token is missing: name the agent that receives the token", details={"field": "agent"}
        )
    scope = fields.get("scope")
    return DelegationRequest(
        agent=fields.get("agent", ""),
        scopes=None if scope is None else frozenset(scope.split()),
        tools=_parse_tools(fields, gateway),
        ceiling=_parse_ceiling(fields),
        task=fields.get("task"),
        constraints=_parse_constraints(fields, gateway),
        lifetime=_parse_lifetime(fields),
    )


def _parse_json_field(fields: dict[str, str], name: str, max_bytes: int, gateway: Gateway) -> Any:
    text = fields[name].encode()
    if len(text) > max_bytes:
        raise MalformedRequest(f"{name} is longer than {max_bytes} bytes", details={"field": name})
    try:
        return read_json(text, gateway.settings.server.max_depth)
    except Problem as problem:
        raise MalformedRequest(f"{name}: {problem.message}", details={"field": name}) from None


def _parse_tools(fields: dict[str, str], gateway: Gateway) -> tuple[Capability, ...] | None:
    if "tools" not in fields:
        return None
    entries = _parse_json_field(fields, "tools", _MAX_TOOLS_BYTES, gateway)
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


def _parse_constraints(fields: dict[str, str], gateway: Gateway) -> bytes | None:
    if "constraints" not in fields:
        return None
    value = _parse_json_field(fields, "constraints", MAX_CONSTRAINTS_BYTES, gateway)
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


def _make_error_response(problem: Problem, trace_id: str) -> Response:
    status = problem.spec.http
    if isinstance(problem, PermissionProblem):
        # RFC 8693, 2.2.2: a token that is not taken is a request that cannot be granted, not a missing login.
        status = 400
    description = f"{problem.message[:1].upper()}{problem.message[1:]}. {problem.advice}"
    body = {
        "error": _choose_error_code(problem, status),
        "error_description": description.replace('"', "'").replace("\\", "/").encode("ascii", "replace").decode(),
        "problem": build_problem_fields(problem, trace_id=trace_id),
    }
    return _make_token_response(body, status, problem.retry_after_ms)


def _choose_error_code(problem: Problem, status: int) -> str:
    if status >= 500 or status == 429:
        return "temporarily_unavailable" if status in (429, 503) else "server_error"
    by_rule = {
        EXCHANGE_SCOPES_RULE: "invalid_scope",
        _TARGET_RULE: "invalid_target",
        _GRANT_TYPE_RULE: "unsupported_grant_type",
    }
    return by_rule.get(str(problem.details.get("rule")), "invalid_request")


def _make_token_response(body: dict[str, Any], status: int, retry_after_ms: int | None = None) -> Response:
    response = make_json_response(body, status)
    response.headers["cache-control"] = "no-store"
    response.headers["pragma"] = "no-cache"
    if retry_after_ms is not None:
        name, value = make_retry_after_header(retry_after_ms)
        response.headers[name.decode()] = value.decode()
    return response
