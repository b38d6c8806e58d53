"""Open to anyone: whether the process lives, whether it may be given work, and what it serves."""

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from deputize.core.errors import Internal, Unavailable
from deputize.doors.rest.common import CurrentGateway, reply
from deputize.doors.rest.document import document, problems
from deputize.doors.rest.models import Alive, Ready
from deputize.doors.rest.page import page

router = APIRouter(tags=["health"])

_PAGE_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}


@router.get("/healthz", summary="Alive", response_model=Alive, responses=problems(always=(Internal,)))
async def alive() -> Response:
    return reply({"status": "ok"})


@router.get(
    "/readyz", summary="Ready for work", response_model=Ready, responses=problems(always=(Internal, Unavailable))
)
async def ready(gateway: CurrentGateway) -> Response:
    """503 names what is missing."""
    checks = [{"name": each.name, "ok": each.ok, "detail": each.detail} for each in gateway.health.checks()]
    failed = [f"{each['name']} ({each['detail']})" for each in checks if not each["ok"]]
    if failed:
        raise Unavailable(
            f"not ready: {', '.join(failed)}",
            details={"checks": checks},
            retry_after_ms=1000,
            advice="Wait, or mend what is named; work given now would be refused.",
        )
    return reply({"ready": True, "checks": checks})


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    return HTMLResponse(page(document(request.app)), headers=_PAGE_HEADERS)


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    return reply(document(request.app))
