"""The raw ASGI echo that the gateway's cost is measured against: JSON in, a small JSON out, nothing between."""

import argparse

import orjson

from proofs.kit.asgi_server import Receive, Scope, Send, read_body, send_json, serve_app


async def echo_app(scope: Scope, receive: Receive, send: Send) -> None:
    body = await read_body(receive)
    arguments = orjson.loads(body) if body else None
    await send_json(send, 200, orjson.dumps({"ok": True, "fields": len(arguments) if arguments else 0}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    serve_app(echo_app, parser.parse_args().port)
