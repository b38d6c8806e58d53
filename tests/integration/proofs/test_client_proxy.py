"""The client proxy strikes before the request, before the reply or after it."""

from collections.abc import AsyncIterator

import httpx2
import pytest

from proofs.kit.client_proxy import ClientPoint, ClientProxy, Request
from proofs.kit.helper_servers import LedgerHandle, start_ledger
from proofs.kit.sandbox import Sandbox

pytestmark = pytest.mark.nightly

EFFECT = {"key": "k", "tool": "t", "call": "c"}


def is_effect(request: Request) -> bool:
    return request.method == "POST" and request.path == "/effect" and b'"k"' in request.body


@pytest.fixture
async def ledger() -> AsyncIterator[LedgerHandle]:
    """A ledger stands in for the gateway: it too is a server that can be killed and remembers what it did."""
    async with Sandbox() as world:
        yield await start_ledger(world)


@pytest.mark.parametrize(
    ("point", "answered", "effects"),
    [("before_request", False, 1), ("before_reply", False, 2), ("after_reply", True, 2)],
)
async def test_the_second_request_is_struck_where_it_was_asked(
    ledger: LedgerHandle, point: ClientPoint, answered: bool, effects: int
) -> None:
    async def kill() -> None:
        ledger.child.kill()
        await ledger.child.wait_for_exit()

    async with (
        ClientProxy(ledger.url) as proxy,
        httpx2.AsyncClient(base_url=proxy.url, trust_env=False, timeout=60) as client,
    ):
        armed = proxy.arm(is_effect, 2, point, kill)
        assert (await client.get("/effects")).status_code == 200
        assert (await client.post("/effect", json=EFFECT)).json()["sequence"] == 1
        if answered:
            assert (await client.post("/effect", json=EFFECT)).json()["sequence"] == 2
        else:
            with pytest.raises(httpx2.TransportError):
                await client.post("/effect", json=EFFECT)
        await armed.wait(90)
        assert not ledger.child.is_alive
        with pytest.raises(httpx2.TransportError):
            await client.get("/effects")
        await ledger.restart()
        assert len((await client.get("/effects")).json()["effects"]) == effects
