"""Serve OAuth: the gateway's metadata (RFC 9728, RFC 8414), its keys (JWKS), and token exchange (RFC 8693).

Refusals of the token endpoint have the form of RFC 6749, with the problem that other routes return inside.
"""

from typing import Any, Literal
from urllib.parse import parse_qsl

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.delegation import EXCHANGE_SCOPES_RULE, TOKEN_EXCHANGE_GRANT_TYPE
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
from deputize.interfaces.connections import find_client
from deputize.interfaces.rest.common import CurrentGateway, make_json_response
from deputize.interfaces.rest.models import ProblemModel
from deputize.interfaces.rest.openapi import describe_problems
from deputize.interfaces.rest.token_forms import (
    ASSERTION_TYPE,
    CLIENT_CREDENTIALS_GRANT_TYPE,
    TOKEN_TYPES,
    parse_client_request,
    parse_exchange_request,
)
from deputize.operations.gateway import Gateway, IssuedToken

router = APIRouter(tags=["identity"])

FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"
_TARGET_RULE, _GRANT_TYPE_RULE = "exchange-target", "exchange-grant-type"
_GRANT_TYPES = (TOKEN_EXCHANGE_GRANT_TYPE, CLIENT_CREDENTIALS_GRANT_TYPE)
_MAX_FIELDS = 64
_REPEATABLE_PARAMETERS = frozenset({"resource", "audience"})
# An unknown parameter may be a misspelt limit, so it is refused, although RFC 6749 would ignore it.
_PARAMETERS: dict[str, str] = {
    "grant_type": f"`{TOKEN_EXCHANGE_GRANT_TYPE}`, or for an operator client `{CLIENT_CREDENTIALS_GRANT_TYPE}`.",
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
    "client_id": "In an exchange ignored: the subject token is the authority. Of an operator client, its own.",
    "client_assertion": "A JWT that the operator client signed for this request (`private_key_jwt`, RFC 7523).",
    "client_assertion_type": f"`{ASSERTION_TYPE}`.",
}


class LoginOfferModel(BaseModel):
    """How people sign in from the command line."""

    issuer: str
    client_id: str
    audience: str
    console_audience: str | None = None


class ProtectedResourceModel(BaseModel):
    resource: str
    resource_name: str
    bearer_methods_supported: list[str]
    authorization_servers: list[str] | None = None
    scopes_supported: list[str] | None = None
    deputize_login: list[LoginOfferModel] | None = None


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
    token_endpoint_auth_signing_alg_values_supported: list[str] | None = None


class JwksModel(BaseModel):
    keys: list[dict[str, str]]


class TokenResponseModel(BaseModel):
    access_token: str
    issued_token_type: str
    token_type: Literal["Bearer"]
    expires_in: int = Field(ge=1)
    scope: str
    grant_id: str = Field(description="The id of the delegation; revoking it also revokes all made from it.")


class OperatorTokenModel(BaseModel):
    """The token of an operator client: it is not delegated, so there is no grant."""

    access_token: str
    token_type: Literal["Bearer"]
    expires_in: int = Field(ge=1)
    scope: str


class OAuthErrorModel(BaseModel):
    error: Literal[
        "invalid_request", "invalid_client", "invalid_scope", "invalid_target", "unsupported_grant_type",
        "temporarily_unavailable", "server_error",
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
async def show_protected_resource(gateway: CurrentGateway) -> Response:
    """Show which issuers' tokens are accepted (RFC 9728), without authentication. A 401 names this URL."""
    return make_json_response(gateway.metadata.describe_resource())


@router.get(
    RESOURCE_METADATA_PATH + MCP_PATH,
    summary="Show the protected resource metadata of MCP",
    response_model=ProtectedResourceModel,
    responses=_PUBLIC_PROBLEMS,
)
async def show_mcp_resource(gateway: CurrentGateway) -> Response:
    """Show which issuers' tokens `/mcp` accepts (RFC 9728), for MCP clients to sign in."""
    return make_json_response(gateway.metadata.describe_resource(MCP_PATH))


@router.get(
    CLIENT_METADATA_PATH,
    summary="Show the client metadata",
    response_model=ClientMetadataModel,
    responses=_PUBLIC_PROBLEMS,
)
async def show_client_metadata(gateway: CurrentGateway) -> Response:
    """Show this gateway's client ID metadata document, for the authorization servers of MCP servers."""
    return make_json_response(gateway.metadata.describe_client())


@router.get(
    "/t/{tenant}/.well-known/oauth-authorization-server",
    summary="Show a tenant's issuer",
    response_model=AuthorizationServerModel,
    responses=_PUBLIC_PROBLEMS,
)
async def show_authorization_server(gateway: CurrentGateway, tenant: str) -> Response:
    """Show the issuer's metadata (RFC 8414) at the path that some clients use. Every tenant name is answered alike."""
    return make_json_response(gateway.metadata.describe_authorization_server(tenant))


@router.get(
    "/.well-known/oauth-authorization-server/t/{tenant}",
    summary="Show a tenant's issuer at its RFC 8414 path",
    response_model=AuthorizationServerModel,
    responses=_PUBLIC_PROBLEMS,
)
async def show_authorization_server_at_path(gateway: CurrentGateway, tenant: str) -> Response:
    return make_json_response(gateway.metadata.describe_authorization_server(tenant))


@router.get(
    "/t/{tenant}/jwks.json", summary="Show a tenant's public keys", response_model=JwksModel, responses=_PUBLIC_PROBLEMS
)
async def list_public_keys(gateway: CurrentGateway, tenant: str) -> Response:
    """Show the keys that sign delegated tokens and tools' tokens; none for a tenant that has signed nothing."""
    return make_json_response(await gateway.metadata.get_jwks(tenant))


def _describe_form() -> dict[str, Any]:
    properties = {name: {"type": "string", "description": description} for name, description in _PARAMETERS.items()}
    properties["grant_type"]["enum"] = list(_GRANT_TYPES)  # type: ignore[assignment]  # the values of a schema have several types
    schema = {"type": "object", "properties": properties, "required": ["grant_type"], "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {FORM_MEDIA_TYPE: {"schema": schema}}}}


@router.post(
    TOKEN_PATH,
    summary="Exchange a token, or get one as an operator client",
    response_model=TokenResponseModel | OperatorTokenModel,
    responses={
        **{
            status: {"model": OAuthErrorModel, "description": _ERROR_DESCRIPTION}
            for status in (400, 401, 413, 415, 429, 500, 503)
        },
        **describe_problems(NoSuchRoute, common=()),
    },
    openapi_extra=_describe_form(),
)
async def exchange_token(request: Request, gateway: CurrentGateway) -> Response:
    """Exchange a token for one of an agent (RFC 8693), with fewer scopes and tools and a shorter lifetime. The
    delegation is durable before the response, and can be revoked. An operator client gets a token for itself instead.
    """
    trace_id, own_resource = read_trace_id(request.scope), gateway.metadata.describe_resource()["resource"]
    address = find_client(request.scope, gateway.settings.server.reverse_proxies)
    try:
        fields = await _read_form(request, gateway, own_resource)
        if _require_grant_type(fields) == CLIENT_CREDENTIALS_GRANT_TYPE:
            return await _issue_operator_token(fields, gateway, address, trace_id)
        exchange_request = parse_exchange_request(fields, gateway.settings.server.max_depth)
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


def _require_grant_type(fields: dict[str, str]) -> str:
    grant_type = fields.get("grant_type")
    if grant_type not in _GRANT_TYPES:
        rule = {"rule": _GRANT_TYPE_RULE} if grant_type is not None else {}
        raise MalformedRequest(
            f"grant_type must be one of {', '.join(_GRANT_TYPES)}", details={"field": "grant_type", **rule}
        )
    return grant_type


async def _issue_operator_token(fields: dict[str, str], gateway: Gateway, address: str, trace_id: str) -> Response:
    client_request = parse_client_request(fields)
    try:
        issued_token = await gateway.operator_tokens.issue_token(
            client_request.assertion, client_id=client_request.client_id, scopes=client_request.scopes, address=address
        )
    except PermissionProblem as problem:
        return _make_error_response(problem, trace_id, is_client=True)
    body = {
        "access_token": issued_token.token,
        "token_type": "Bearer",
        "expires_in": issued_token.seconds,
        "scope": " ".join(sorted(issued_token.scopes)),
    }
    return _make_token_response(body, 200)


def _render_token(delegation: IssuedToken) -> dict[str, Any]:
    return {
        "access_token": delegation.token,
        "issued_token_type": TOKEN_TYPES[0],
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


def _make_error_response(problem: Problem, trace_id: str, *, is_client: bool = False) -> Response:
    status = problem.spec.http
    if isinstance(problem, PermissionProblem) and not (is_client and status == 401):
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
    if status == 401:
        # RFC 6749, 5.2: the client did not authenticate. Only an operator client has to.
        return "invalid_client"
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
