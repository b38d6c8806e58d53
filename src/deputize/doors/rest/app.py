"""The REST door as a whole: routes grouped by what they are about, one document, and no answer that is not ours.

Every refusal leaves as an RFC 9457 problem, those of the router and the framework included. Above: `doors/asgi.py`,
which takes the hot route out before it reaches the framework. Below: the routers beside this file.
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
from deputize.doors.rest import (
    approvals,
    calls,
    grants,
    health,
    oauth,
    policies,
    secrets,
    servers,
    suggestions,
    surface,
    switches,
    tickets,
    tools,
    webhooks,
)
from deputize.doors.rest.common import Current, malformed, metadata_url, problem_reply
from deputize.doors.rest.document import document
from deputize.doors.wire import ASGIApp, Receive, Scope, Send, hide, trace_id_of

_ABOUT = "The governed execution layer for agent tools: who asked, whether they may, that it happened once, and proof."


class _Hot:
    """Stands in the routing table for the hot route, so that it is listed, and allowed, where it is served."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def rest_app(gateway: Current, hot: ASGIApp, closing: asyncio.Event) -> FastAPI:
    app = FastAPI(
        title="Deputize",
        version=version("deputize"),
        description=_ABOUT,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            Problem: _problem,
            RequestValidationError: _invalid,
            HTTPException: _unrouted,
            Exception: _unexpected,
        },
    )
    app.state.gateway = gateway
    app.state.closing = closing
    app.router.routes.append(Route("/v1/calls", _Hot(hot), methods=["POST"], name="post_call"))
    for router in (
        calls.router,
        policies.decisions,
        surface.router,
        tools.router,
        tools.commands,
        policies.router,
        secrets.router,
        switches.router,
        webhooks.router,
        suggestions.router,
        approvals.router,
        tickets.router,
        servers.router,
        grants.router,
        oauth.router,
        health.router,
    ):
        app.include_router(router)
    described: Callable[[], object] = lambda: document(app)  # noqa: E731 -- FastAPI asks its app for the document
    app.openapi = described  # type: ignore[method-assign, assignment]
    return app


async def _problem(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    metadata = metadata_url(request) if problem.face.http == 401 else None
    return problem_reply(problem, trace_id_of(request.scope), metadata=metadata)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem_reply(malformed(error.errors()), trace_id_of(request.scope))


async def _unrouted(request: Request, error: Exception) -> Response:
    """Only the router itself raises these here: nothing is served, or not with this method."""
    assert isinstance(error, HTTPException)
    trace_id = trace_id_of(request.scope)
    if error.status_code != 405:
        return problem_reply(NoSuchRoute("there is nothing here"), trace_id)
    allowed = ", ".join(_methods(request))
    problem = MethodNotAllowed(f"{request.method} is not possible here; {allowed} is", details={"allow": allowed})
    return problem_reply(problem, trace_id, allow=allowed)


def _methods(request: Request) -> list[str]:
    """Every method served at this path, which may be spread over several routes; the document knows them all. A path
    that is written out there means itself, whatever could stand for it as an id elsewhere.
    """
    paths, asked = document(request.app)["paths"], request.url.path
    if asked in paths:
        return sorted(verb.upper() for verb in paths[asked])
    alike = (operations for template, operations in paths.items() if compile_path(template)[0].match(asked))
    return sorted({verb.upper() for operations in alike for verb in operations}) or ["GET"]


async def _unexpected(request: Request, error: Exception) -> Response:
    trace_id = trace_id_of(request.scope)
    return problem_reply(hide(error, trace_id), trace_id)
