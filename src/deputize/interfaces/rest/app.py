"""Build the REST application from its routers.

Every refusal is an RFC 9457 problem, those of the router and the framework included. `interfaces/asgi.py` handles
`POST /v1/calls` before it reaches the framework.
"""

import asyncio
from collections.abc import Callable
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Route, compile_path

from deputize.core.errors import MethodNotAllowed, NoSuchRoute, Problem
from deputize.interfaces.asgi_http import ASGIApp, Receive, Scope, Send, hide_internal_error, read_trace_id
from deputize.interfaces.rest import health, oauth
from deputize.interfaces.rest.admin import (
    activity,
    agents,
    circuits,
    contract_tests,
    erasures,
    grants,
    legal_holds,
    revocations,
    secrets,
    servers,
    surface,
    tools,
    webhooks,
)
from deputize.interfaces.rest.approvals import approval_routes, human_tasks, suggestions
from deputize.interfaces.rest.audit import audit_routes, log_routes, observation_routes
from deputize.interfaces.rest.calls import call_routes, cost_routes, flow_routes, undo_routes
from deputize.interfaces.rest.common import GetGateway, get_metadata_url, make_malformed_problem, make_problem_response
from deputize.interfaces.rest.openapi import build_openapi
from deputize.interfaces.rest.policies import policy_routes, switches

_DESCRIPTION = (
    "The governed execution layer for agent tools: authenticate, authorize, run once, and audit every tool call."
)


_ROUTERS = (
    call_routes.router,
    cost_routes.router,
    flow_routes.router,
    undo_routes.router,
    audit_routes.router,
    observation_routes.router,
    activity.router,
    log_routes.router,
    policy_routes.decisions,
    surface.router,
    tools.router,
    tools.commands,
    policy_routes.router,
    secrets.router,
    switches.router,
    revocations.router,
    contract_tests.router,
    erasures.router,
    legal_holds.router,
    webhooks.router,
    suggestions.router,
    approval_routes.router,
    human_tasks.router,
    servers.router,
    circuits.router,
    agents.router,
    grants.router,
    oauth.router,
    health.router,
)


class _PostCallRoute:
    """The entry of `POST /v1/calls` in the routing table, so that its path and method are known there."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def build_rest_app(get_gateway: GetGateway, post_call: ASGIApp, shutdown: asyncio.Event) -> FastAPI:
    """Build the application. `get_gateway` raises a Problem while no gateway is open."""
    app = FastAPI(
        title="Deputize",
        version=version("deputize"),
        description=_DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Generated clients name their methods by these, so they are the names that people read.
        generate_unique_id_function=lambda route: route.name,
        exception_handlers={
            Problem: _handle_problem,
            RequestValidationError: _handle_validation_error,
            HTTPException: _handle_http_exception,
            Exception: _handle_unexpected_error,
        },
    )
    app.state.gateway = get_gateway
    app.state.shutdown = shutdown
    app.router.routes.append(Route("/v1/calls", _PostCallRoute(post_call), methods=["POST"], name="post_call"))
    for router in _ROUTERS:
        app.include_router(router)
    describe_app: Callable[[], object] = lambda: build_openapi(app)  # noqa: E731 -- FastAPI calls this attribute of its app
    app.openapi = describe_app  # type: ignore[method-assign, assignment]
    return app


async def _handle_problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    metadata = get_metadata_url(request) if problem.spec.http == 401 else None
    return make_problem_response(problem, read_trace_id(request.scope), metadata=metadata)


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return make_problem_response(make_malformed_problem(error.errors()), read_trace_id(request.scope))


async def _handle_http_exception(request: Request, error: Exception) -> Response:
    """Answer what only the router raises: an unknown path, or a method that a path does not have."""
    assert isinstance(error, HTTPException)
    trace_id = read_trace_id(request.scope)
    if error.status_code != 405:
        return make_problem_response(NoSuchRoute("no such route"), trace_id)
    methods = ", ".join(_list_methods(request))
    problem = MethodNotAllowed(f"{request.method} is not allowed here; allowed: {methods}", details={"allow": methods})
    return make_problem_response(problem, trace_id, allow=methods)


def _list_methods(request: Request) -> list[str]:
    """List the methods of a path from the OpenAPI document, since they may be spread over several routes.

    A path that the document spells out wins over a template that it would match.
    """
    paths, path = build_openapi(request.app)["paths"], request.url.path
    if path in paths:
        return sorted(verb.upper() for verb in paths[path])
    matches = (operations for template, operations in paths.items() if compile_path(template)[0].match(path))
    return sorted({verb.upper() for operations in matches for verb in operations}) or ["GET"]


async def _handle_unexpected_error(request: Request, error: Exception) -> Response:
    trace_id = read_trace_id(request.scope)
    return make_problem_response(hide_internal_error(error, trace_id), trace_id)
