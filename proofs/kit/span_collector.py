"""Receive spans and discard them, unless told where to keep them, so that only the cost of sending is measured."""

import argparse
import gzip
from collections.abc import Iterable
from pathlib import Path

from proofs.kit.asgi_server import App, Receive, Scope, Send, read_body, send_json, serve_app


def make_collector(file: Path | None) -> App:
    """With a file, every body is added to it as it came, unpacked."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        if file is not None:
            with file.open("ab") as output:
                output.write(gzip.decompress(body) if _is_gzip(scope["headers"]) else body)
        await send_json(send, 200, b"")

    return app


def _is_gzip(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return dict(headers).get(b"content-encoding") == b"gzip"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="FILE")
    options = parser.parse_args()
    serve_app(make_collector(options.keep), options.port)
