"""Send an export of the audit as a file, for REST and the console."""

import asyncio
from collections.abc import AsyncIterator

from deputize.core.errors import Unavailable
from deputize.operations.gateway import AuditFormat

_MEDIA_TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}


def build_export_headers(export_format: AuditFormat) -> dict[str, str]:
    """Build the headers that make a browser save the export."""
    return {
        "content-type": _MEDIA_TYPES[export_format],
        "content-disposition": f'attachment; filename="audit.{export_format}"',
    }


async def stream_export(
    first_chunk: bytes, chunks: AsyncIterator[bytes], shutdown: asyncio.Event
) -> AsyncIterator[bytes]:
    """Stream an export until the gateway stops: who reads slowly must not keep it from that. It then breaks off."""
    yield first_chunk
    async for chunk in chunks:
        if shutdown.is_set():
            raise Unavailable("the gateway stops, so the export ended before it was complete")
        yield chunk
