"""A collector that takes every span and keeps none, unless told where to: what tracing costs is the gateway's to pay.

Above: `companions.start_sink`. Below: `serving`.
"""

import argparse
import gzip
from collections.abc import Iterable
from pathlib import Path

from proofs.kit.serving import App, Receive, Scope, Send, answer, read_body, serve


def collector(file: Path | None) -> App:
    """With a file, every body is added to it as it came, unpacked."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        if file is not None:
            with file.open("ab") as kept:
                kept.write(gzip.decompress(body) if _is_packed(scope["headers"]) else body)
        await answer(send, 200, b"")

    return app


def _is_packed(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return dict(headers).get(b"content-encoding") == b"gzip"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="FILE")
    given = parser.parse_args()
    serve(collector(given.keep), given.port)
