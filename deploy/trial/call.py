"""Be an agent of the trial: get a token, call a tool that is allowed, and one that needs a person."""

import json
import time
from base64 import b64encode
from collections.abc import Callable
from typing import TypeVar
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from deputize import SyncClient

GATEWAY = "http://gateway:7070"
SECONDS = 120
T = TypeVar("T")


def get_token() -> str:
    form = {"grant_type": "client_credentials", "scope": "stock:read stock:write", "resource": GATEWAY}
    request = Request("http://openid:9000/token", urlencode(form).encode())
    request.add_header("Authorization", f"Basic {b64encode(b'agent:trial').decode()}")
    with urlopen(request, timeout=5) as response:
        return str(json.load(response)["access_token"])


def check_ready() -> None:
    urlopen(f"{GATEWAY}/readyz", timeout=5).close()


def wait_for(attempt: Callable[[], T]) -> T:
    """Repeat an attempt until what it needs has started."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return attempt()
        except (URLError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def main() -> None:
    wait_for(check_ready)
    with SyncClient(GATEWAY, wait_for(get_token)) as gateway:
        reply = gateway.call("stock.count", item="apple")
        print(f"✓ stock.count: {reply.result}  (call {reply.call_id})")
        held = gateway.call("stock.order", item="apple", pieces=3)
        print(f"⏸ stock.order waits for {held.approval['groups']} until {held.approval['expires_at']}")


if __name__ == "__main__":
    main()
