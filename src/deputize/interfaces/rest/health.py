"""Serve liveness, readiness and the API documentation, without authentication."""

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from deputize.core.errors import InternalError, Unavailable
from deputize.interfaces.metrics import describe_checks
from deputize.interfaces.rest.common import CurrentGateway, make_json_response
from deputize.interfaces.rest.docs_page import render_docs_page
from deputize.interfaces.rest.models import LivenessModel, ReadinessModel
from deputize.interfaces.rest.openapi import build_openapi, describe_problems

router = APIRouter(tags=["health"])

_PAGE_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}


@router.get(
    "/healthz",
    summary="Check liveness",
    response_model=LivenessModel,
    responses=describe_problems(common=(InternalError,)),
)
async def check_liveness() -> Response:
    return make_json_response({"status": "ok"})


@router.get(
    "/readyz",
    summary="Check readiness",
    response_model=ReadinessModel,
    responses=describe_problems(common=(InternalError, Unavailable)),
)
async def check_readiness(gateway: CurrentGateway) -> Response:
    """Answer 503 with the failed checks if a required one failed. A gateway is ready without workers, and says so."""
    health_checks = gateway.health.run_checks()
    checks = describe_checks(health_checks)
    failures = [f"{each.name} ({each.detail})" for each in health_checks if each.is_required and not each.ok]
    if failures:
        raise Unavailable(
            f"not ready: {', '.join(failures)}",
            details={"checks": checks},
            retry_after_ms=1000,
            advice="Wait, or fix the failed checks in details.checks; calls would be refused now.",
        )
    return make_json_response({"ready": True, "checks": checks})


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    return HTMLResponse(render_docs_page(await asyncio.to_thread(build_openapi, request.app)), headers=_PAGE_HEADERS)


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    # The first one builds the document, which takes a second: other requests go on meanwhile.
    return make_json_response(await asyncio.to_thread(build_openapi, request.app))
