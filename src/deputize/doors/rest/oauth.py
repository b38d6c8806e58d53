"""OAuth as others speak it: what this gateway is (RFC 9728, RFC 8414), its keys, and the exchange of tokens (RFC 8693).

Refusals at the token endpoint have the form RFC 6749 gives them, with the problem every other door shows inside.
Above: `rest/app.py`. Below: `lifecycle/delegate.py` and `lifecycle/wellknown.py`.
"""

from typing import Any, Literal
from urllib.parse import parse_qsl

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.caller import Capability
from deputize.core.contract import Effects, inward
from deputize.core.errors import (
    ExchangeRefused,
    Internal,
    Malformed,
    NoSuchRoute,
    Permission,
    Problem,
    Unavailable,
    UnsupportedMedia,
)
from deputize.core.outcome import problem_fields
from deputize.doors.json_in import read_json
from deputize.doors.rest.common import CurrentGateway, reply
from deputize.doors.rest.document import problems
from deputize.doors.rest.models import ProblemShown
from deputize.doors.wire import ClientGone, headers_of, hide, read_body, retry_after, trace_id_of
from deputize.govern.identity.exchange import MAX_CONSTRAINTS_BYTES, SCOPES, Asked
from deputize.lifecycle.delegate import Issued
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.servers.signing_in import CLIENT_PATH
from deputize.lifecycle.wellknown import MCP_PATH, RESOURCE_PATH, TOKEN_EXCHANGE, TOKEN_PATH

router = APIRouter(tags=["identity"])

FORM = "application/x-www-form-urlencoded"
_TYPE = "urn:ietf:params:oauth:token-type:"
_TOKEN_TYPES = (f"{_TYPE}access_token", f"{_TYPE}jwt")
_TARGET, _GRANT_TYPE = "exchange-target", "exchange-grant-type"
_MOST_FIELDS = 64
_MOST_TOOLS_BYTES = 65_536
_MAY_REPEAT = frozenset({"resource", "audience"})
# A parameter nobody knows may be a limit misspelt, so it is refused, although RFC 6749 would have it ignored.
_PARAMETERS: dict[str, str] = {
    "grant_type": f"`{TOKEN_EXCHANGE}`.",
    "subject_token": "A token for this gateway: the authority that is lent.",
    "subject_token_type": "What that is: an access token, or a JWT.",
    "actor_token": "Who receives it: a token of a trusted issuer, or one that a DID signed for itself.",
    "actor_token_type": "What that is.",
    "requested_token_type": "Only access tokens are made here.",
    "agent": "Who receives it, where the holder of the subject token vouches for the name.",
    "scope": "Scopes among those in hand; without it, all but the one to administer.",
    "tools": "A JSON list of `{tool_id, version_range}` among those in hand.",
    "ceiling": "The worst effect allowed: `read`, `write` or `destructive`.",
    "task": "What it is for; it cannot be changed later.",
    "constraints": "A JSON object of at most 4 KB, kept with the grant and shown with it.",
    "lifetime": "Seconds; never longer than the token in hand.",
    "resource": "This gateway.",
    "audience": "This gateway.",
    "client_id": "Not looked at: the token in hand is the authority.",
}


class ResourceShown(BaseModel):
    resource: str
    resource_name: str
    bearer_methods_supported: list[str]
    authorization_servers: list[str] | None = None
    scopes_supported: list[str] | None = None


class ClientShown(BaseModel):
    client_id: str
    client_name: str
    client_uri: str
    redirect_uris: list[str]
    grant_types: list[str]
    response_types: list[str]
    token_endpoint_auth_method: str
    application_type: str


class IssuerShown(BaseModel):
    issuer: str
    token_endpoint: str
    jwks_uri: str
    grant_types_supported: list[str]
    response_types_supported: list[str]
    token_endpoint_auth_methods_supported: list[str]


class KeysShown(BaseModel):
    keys: list[dict[str, str]]


class TokenIssued(BaseModel):
    access_token: str
    issued_token_type: str
    token_type: Literal["Bearer"]
    expires_in: int = Field(ge=1)
    scope: str
    grant_id: str = Field(description="What to revoke to take it back, with everything made from it.")


class OAuthRefusal(BaseModel):
    error: Literal[
        "invalid_request", "invalid_scope", "invalid_target", "unsupported_grant_type", "temporarily_unavailable",
        "server_error",
    ]  # fmt: skip
    error_description: str
    problem: ProblemShown


_OPEN = problems(NoSuchRoute, always=(Internal, Unavailable))
_REFUSED = "A refusal as RFC 6749 writes it; `problem` says it as every other route does."


@router.get(RESOURCE_PATH, summary="Whose tokens are taken here", response_model=ResourceShown, responses=_OPEN)
async def resource(gateway: CurrentGateway) -> Response:
    """RFC 9728. Open to anyone; a refused request says where this is."""
    return reply(gateway.wellknown.resource())


@router.get(
    RESOURCE_PATH + MCP_PATH,
    summary="Whose tokens the MCP door takes",
    response_model=ResourceShown,
    responses=_OPEN,
)
async def mcp_resource(gateway: CurrentGateway) -> Response:
    """RFC 9728, of `/mcp`: MCP clients look here to sign in by themselves."""
    return reply(gateway.wellknown.resource(MCP_PATH))


@router.get(CLIENT_PATH, summary="Who this gateway is to others", response_model=ClientShown, responses=_OPEN)
async def client(gateway: CurrentGateway) -> Response:
    """A client ID metadata document: authorization servers of MCP servers read here who wants to sign in."""
    return reply(gateway.wellknown.client())


@router.get(
    "/t/{tenant}/.well-known/oauth-authorization-server",
    summary="A tenant's issuer",
    response_model=IssuerShown,
    responses=_OPEN,
)
async def server(gateway: CurrentGateway, tenant: str) -> Response:
    """RFC 8414, as some clients look for it. Says nothing about whether there is such a tenant."""
    return reply(gateway.wellknown.authorization_server(tenant))


@router.get(
    "/.well-known/oauth-authorization-server/t/{tenant}",
    summary="A tenant's issuer, where RFC 8414 puts it",
    response_model=IssuerShown,
    responses=_OPEN,
)
async def server_by_the_book(gateway: CurrentGateway, tenant: str) -> Response:
    return reply(gateway.wellknown.authorization_server(tenant))


@router.get("/t/{tenant}/jwks.json", summary="A tenant's public keys", response_model=KeysShown, responses=_OPEN)
async def jwks(gateway: CurrentGateway, tenant: str) -> Response:
    """What tokens lent here, and tokens handed to tools, are signed with. None for a tenant that lent nothing yet."""
    return reply(await gateway.wellknown.jwks(tenant))


def _form_document() -> dict[str, Any]:
    required = ["grant_type", "subject_token", "subject_token_type"]
    properties = {name: {"type": "string", "description": told} for name, told in _PARAMETERS.items()}
    properties["grant_type"]["enum"] = [TOKEN_EXCHANGE]  # type: ignore[assignment]  # a document's values vary in shape
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {FORM: {"schema": schema}}}}


@router.post(
    TOKEN_PATH,
    summary="Lend authority to an agent",
    response_model=TokenIssued,
    responses={
        **{status: {"model": OAuthRefusal, "description": _REFUSED} for status in (400, 413, 415, 500, 503)},
        **problems(NoSuchRoute, always=()),
    },
    openapi_extra=_form_document(),
)
async def exchange(request: Request, gateway: CurrentGateway) -> Response:
    """RFC 8693: a token in hand becomes another's, with fewer scopes and tools and for a shorter time. The grant is
    durable before the answer, and can be revoked.
    """
    trace_id, own = trace_id_of(request.scope), gateway.wellknown.resource()["resource"]
    try:
        fields = await _form(request, gateway, own)
        asked = _asked(fields, gateway)
        actor = fields.get("actor_token")
        issued = await gateway.delegations.exchange(
            fields["subject_token"].encode(), None if actor is None else actor.encode(), asked
        )
    except (NoSuchRoute, ClientGone):
        raise
    except Problem as problem:
        return _refusal(problem, trace_id)
    except Exception as error:  # noqa: BLE001 -- the door's edge: a fault of ours is logged here and shown to nobody
        return _refusal(hide(error, trace_id), trace_id)
    return _answer(_issued(issued), 200)


def _issued(issued: Issued) -> dict[str, Any]:
    return {
        "access_token": issued.token,
        "issued_token_type": _TOKEN_TYPES[0],
        "token_type": "Bearer",
        "expires_in": issued.seconds,
        "scope": " ".join(sorted(issued.grant.scopes)),
        "grant_id": issued.grant.id,
    }


async def _form(request: Request, gateway: Gateway, own: str) -> dict[str, str]:
    """The parameters that have a value, each given once; `resource` and `audience` may come several times."""
    headers = headers_of(request.scope)
    media = headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")
    if media != FORM:
        raise UnsupportedMedia("the body is not declared as a form", advice=f"Send the body as {FORM}.")
    body = await read_body(request.receive, headers, gateway.settings.server.max_body_bytes)
    try:
        pairs = parse_qsl(body.decode("ascii"), errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Malformed("the form cannot be read") from None
    fields: dict[str, str] = {}
    for name, value in pairs:
        if name not in _PARAMETERS:
            raise Malformed(f"there is no parameter {name[:64]!r}; there are {', '.join(_PARAMETERS)}")
        if name in fields and name not in _MAY_REPEAT:
            raise Malformed(f"the parameter {name} was sent more than once", details={"field": name})
        if name in _MAY_REPEAT:
            _require_here(name, value, own)
        fields[name] = value
    return fields


def _require_here(name: str, value: str, own: str) -> None:
    if value.removesuffix("/") != own:
        raise ExchangeRefused(
            f"tokens are made for this gateway only, and {name} names another",
            details={"rule": _TARGET, "resource": own},
            advice="Leave it out, or name this gateway.",
        )


def _asked(fields: dict[str, str], gateway: Gateway) -> Asked:
    if fields.get("grant_type") != TOKEN_EXCHANGE:
        rule = {"rule": _GRANT_TYPE} if "grant_type" in fields else {}
        raise Malformed(f"grant_type must be {TOKEN_EXCHANGE}", details={"field": "grant_type", **rule})
    for name in ("subject_token", "actor_token"):
        kind = fields.get(f"{name}_type")
        if (name in fields) != (kind is not None) or (kind is not None and kind not in _TOKEN_TYPES):
            needed = f"{name} and {name}_type go together, and the type is one of {', '.join(_TOKEN_TYPES)}"
            raise Malformed(needed, details={"field": f"{name}_type"})
    if "subject_token" not in fields:
        raise Malformed("subject_token is missing", details={"field": "subject_token"})
    if fields.get("requested_token_type", _TOKEN_TYPES[0]) not in _TOKEN_TYPES:
        raise Malformed("only access tokens are made here", details={"field": "requested_token_type"})
    if "agent" not in fields and "actor_token" not in fields:
        raise Malformed("say who receives the token: send agent, or an actor_token", details={"field": "agent"})
    scope = fields.get("scope")
    return Asked(
        agent=fields.get("agent", ""),
        scopes=None if scope is None else frozenset(scope.split()),
        tools=_tools(fields, gateway),
        ceiling=_ceiling(fields),
        task=fields.get("task"),
        constraints=_constraints(fields, gateway),
        lifetime=_lifetime(fields),
    )


def _json(fields: dict[str, str], name: str, longest: int, gateway: Gateway) -> Any:
    text = fields[name].encode()
    if len(text) > longest:
        raise Malformed(f"{name} is longer than {longest} bytes", details={"field": name})
    try:
        return read_json(text, gateway.settings.server.max_depth)
    except Problem as problem:
        raise Malformed(f"{name}: {problem.message}", details={"field": name}) from None


def _tools(fields: dict[str, str], gateway: Gateway) -> tuple[Capability, ...] | None:
    if "tools" not in fields:
        return None
    listed = _json(fields, "tools", _MOST_TOOLS_BYTES, gateway)
    if not isinstance(listed, list) or not all(map(_is_tool, listed)):
        raise Malformed("tools is a list of objects with tool_id and version_range", details={"field": "tools"})
    return tuple(Capability(tool=inward(each["tool_id"]), versions=each.get("version_range", "*")) for each in listed)


def _is_tool(value: Any) -> bool:
    if not isinstance(value, dict) or not value.keys() <= {"tool_id", "version_range"}:
        return False
    name, versions = value.get("tool_id"), value.get("version_range", "*")
    return isinstance(name, str) and 0 < len(name) <= 97 and isinstance(versions, str) and 0 < len(versions) <= 64


def _ceiling(fields: dict[str, str]) -> Effects | None:
    try:
        return Effects(fields["ceiling"]) if "ceiling" in fields else None
    except ValueError:
        raise Malformed("ceiling is read, write or destructive", details={"field": "ceiling"}) from None


def _constraints(fields: dict[str, str], gateway: Gateway) -> bytes | None:
    if "constraints" not in fields:
        return None
    value = _json(fields, "constraints", MAX_CONSTRAINTS_BYTES, gateway)
    if not isinstance(value, dict):
        raise Malformed("constraints is a JSON object", details={"field": "constraints"})
    return orjson.dumps(value)


def _lifetime(fields: dict[str, str]) -> int | None:
    text = fields.get("lifetime")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise Malformed("lifetime is a whole number of seconds", details={"field": "lifetime"})
    return int(text)


def _refusal(problem: Problem, trace_id: str) -> Response:
    status = problem.face.http
    if isinstance(problem, Permission):
        # RFC 8693, 2.2.2: a token that is not taken is a request that cannot be granted, not a missing login.
        status = 400
    said = f"{problem.message[:1].upper()}{problem.message[1:]}. {problem.advice}"
    body = {
        "error": _word(problem, status),
        "error_description": said.replace('"', "'").replace("\\", "/").encode("ascii", "replace").decode(),
        "problem": problem_fields(problem, trace_id=trace_id),
    }
    return _answer(body, status, problem.retry_after_ms)


def _word(problem: Problem, status: int) -> str:
    if status >= 500:
        return "temporarily_unavailable" if status == 503 else "server_error"
    by_rule = {SCOPES: "invalid_scope", _TARGET: "invalid_target", _GRANT_TYPE: "unsupported_grant_type"}
    return by_rule.get(str(problem.details.get("rule")), "invalid_request")


def _answer(body: dict[str, Any], status: int, retry_after_ms: int | None = None) -> Response:
    response = reply(body, status)
    response.headers["cache-control"] = "no-store"
    response.headers["pragma"] = "no-cache"
    if retry_after_ms is not None:
        name, value = retry_after(retry_after_ms)
        response.headers[name.decode()] = value.decode()
    return response
