"""A collector that takes every span and keeps none: what tracing costs is the gateway's to pay, not the collector's.

Above: `companions.start_sink`. Below: `serving`.
"""

import argparse

from proofs.kit.serving import Receive, Scope, Send, answer, read_body, serve


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await read_body(receive)
    await answer(send, 200, b"")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    serve(app, parser.parse_args().port)
