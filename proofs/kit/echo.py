"""The raw ASGI echo that the gateway's cost is measured against: JSON in, a small JSON out, nothing between.

Above: `companions.start_echo`, or `python -m proofs.kit.echo [--port N]`. Below: `serving`.
"""

import argparse

import orjson

from proofs.kit.serving import Receive, Scope, Send, answer, read_body, serve


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    body = await read_body(receive)
    arguments = orjson.loads(body) if body else None
    await answer(send, 200, orjson.dumps({"ok": True, "fields": len(arguments) if arguments else 0}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    serve(app, parser.parse_args().port)
