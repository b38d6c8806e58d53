"""Serve the transparency log of a tenant in the form of C2SP's tlog-tiles, and its keys."""

from typing import Annotated, Final

from fastapi import APIRouter, Query
from fastapi.responses import Response

from deputize.core.errors import ConcurrencyLimitReached, LogNotFound, ScopeMissing
from deputize.interfaces.rest.audit.audit_models import (
    LogCheckpointList,
    LogCheckpointQuery,
    LogKeyList,
    UnloggedEntryList,
    UnloggedEntryQuery,
)
from deputize.interfaces.rest.common import CurrentCaller, CurrentGateway, make_json_response
from deputize.interfaces.rest.openapi import describe_problems

router = APIRouter(prefix="/log/{tenant}", tags=["log"])

# For the caches of those who were authorized, and for no other.
_IMMUTABLE: Final = "private, max-age=31536000, immutable"
_NO_STORE: Final = "no-store"
_TILE_MEDIA: Final = "application/octet-stream"


@router.get(
    "/checkpoint",
    summary="Get the checkpoint of a log",
    response_class=Response,
    responses={
        200: {"description": "The newest checkpoint: a signed note.", "content": {"text/plain": {}}},
        **describe_problems(LogNotFound, ScopeMissing),
    },
)
async def get_checkpoint(gateway: CurrentGateway, caller: CurrentCaller, tenant: str) -> Response:
    """Get the newest signed checkpoint of your tenant's log, as an administrator: its name, size and root."""
    note = await gateway.log_reader.load_checkpoint(caller, tenant)
    return Response(note, media_type="text/plain; charset=utf-8", headers={"cache-control": _NO_STORE})


@router.get(
    "/keys",
    summary="List the keys of a log",
    response_model=LogKeyList,
    responses=describe_problems(LogNotFound, ScopeMissing),
)
async def list_log_keys(gateway: CurrentGateway, caller: CurrentCaller, tenant: str) -> Response:
    """List the keys that sign or signed the checkpoints of your tenant's log, as an administrator.

    Who wants to verify what this gateway says gets the key from its operator instead.
    """
    return make_json_response(await gateway.log_reader.list_keys(caller, tenant))


@router.get(
    "/checkpoints",
    summary="List the checkpoints of a log",
    response_model=LogCheckpointList,
    responses=describe_problems(LogNotFound, ScopeMissing),
)
async def list_checkpoints(
    gateway: CurrentGateway, caller: CurrentCaller, tenant: str, query: Annotated[LogCheckpointQuery, Query()]
) -> Response:
    """List what your tenant's log signed, as an administrator. Two checkpoints tell when the entries between them were
    signed.
    """
    page = await gateway.log_history.list_checkpoints(caller, tenant, after=query.after, limit=query.limit)
    return make_json_response(page)


@router.get(
    "/unlogged",
    summary="Find entries that are not in the log",
    response_model=UnloggedEntryList,
    responses=describe_problems(LogNotFound, ScopeMissing, ConcurrencyLimitReached),
)
async def find_unlogged_entries(
    gateway: CurrentGateway, caller: CurrentCaller, tenant: str, query: Annotated[UnloggedEntryQuery, Query()]
) -> Response:
    """Compare the next 5,000 audit entries with your tenant's log, as an administrator. An entry that is neither in it
    nor queued was not written by a gateway.
    """
    return make_json_response(await gateway.log_history.find_unlogged_entries(caller, tenant, after=query.after))


@router.get(
    "/tile/{tile_path:path}",
    summary="Get a tile of a log",
    response_class=Response,
    responses={
        200: {"description": "Hashes of 32 bytes, or entries after their lengths.", "content": {_TILE_MEDIA: {}}},
        **describe_problems(LogNotFound, ScopeMissing, ConcurrencyLimitReached),
    },
)
async def get_tile(gateway: CurrentGateway, caller: CurrentCaller, tenant: str, tile_path: str) -> Response:
    """Get hashes (`LEVEL/INDEX`) or entries (`entries/INDEX`) of your tenant's log, as an administrator. A part of a
    tile ends in `.p/WIDTH`. The paths are those of C2SP's tlog-tiles.
    """
    tile = await gateway.log_reader.load_tile(caller, tenant, f"tile/{tile_path}")
    cache = _IMMUTABLE if tile.is_immutable else _NO_STORE
    return Response(tile.content, media_type=_TILE_MEDIA, headers={"cache-control": cache})
