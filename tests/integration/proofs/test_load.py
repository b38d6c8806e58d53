"""The load client measures what was really answered, and pairs two loads round by round."""

import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import orjson
import pytest

from proofs.kit.helper_servers import start_echo, start_ledger
from proofs.kit.load import LoadError, Sample, Target, make_http_load, run_paired_rounds, run_wrk
from proofs.kit.sandbox import Sandbox

needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="no wrk: apt-get install -y wrk")

KEYS = """
from collections import Counter
import orjson
from proofs.kit.asgi_server import send_json, read_body, serve_app
keys, unauthorized = Counter(), 0
async def app(scope, receive, send):
    global unauthorized
    await read_body(receive)
    headers = dict(scope["headers"])
    if scope["method"] == "POST":
        keys[headers[b"idempotency-key"]] += 1
        unauthorized += headers.get(b"authorization") != b"Bearer t"
    repeated = sum(1 for count in keys.values() if count > 1) if scope["method"] == "GET" else 0
    seen = {"distinct": len(keys), "repeated": repeated, "unauthorized": unauthorized}
    await send_json(send, 200, orjson.dumps(seen))
serve_app(app)
"""


@pytest.fixture
async def world() -> AsyncIterator[Sandbox]:
    async with Sandbox() as world:
        yield world


@needs_wrk
async def test_the_echo_is_measured(world: Sandbox) -> None:
    target = Target(url=await start_echo(world), body=orjson.dumps({"a": 'quote " and \\ and ü'}))
    sample = await run_wrk(target, seconds=1, connections=8)
    assert sample.requests > 100
    assert 0.9 < sample.seconds < 20
    assert 0 < sample.p50_ms <= sample.p99_ms <= sample.max_ms


@needs_wrk
async def test_a_rate_of_refusals_is_no_rate(world: Sandbox) -> None:
    ledger = await start_ledger(world)
    with pytest.raises(LoadError, match="4xx"):
        await run_wrk(Target(url=f"{ledger.url}/nowhere"), seconds=1, connections=2)


@needs_wrk
async def test_every_request_may_carry_a_key_of_its_own(world: Sandbox) -> None:
    keys = await world.start_process("keys", [sys.executable, "-c", KEYS], cwd=Path.cwd(), ready_line="listening on ")
    url = (await keys.wait_for_line("listening on ")).partition("listening on ")[2]
    load = make_http_load(
        Target(url=url, headers={"Authorization": "Bearer t"}, unique_keys=True), connections=4, threads=2
    )
    first, second = await load(1), await load(1)
    async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
        seen = (await client.get(url)).json()
    assert seen["repeated"] == 0
    assert seen["unauthorized"] == 0
    assert seen["distinct"] >= first.requests + second.requests


async def test_rounds_are_paired_and_take_turns() -> None:
    order: list[str] = []

    async def a(seconds: int) -> Sample:
        order.append("a")
        return Sample(requests=10 * len(order), seconds=seconds)

    async def b(seconds: int) -> Sample:
        order.append("b")
        return Sample(requests=20 * len(order), seconds=seconds)

    paired = await run_paired_rounds(a, b, rounds=3, seconds=2, warmup=0)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert paired.ratios == (10 / 40, 40 / 60, 50 / 120)
    assert paired.median == 50 / 120
    assert paired.spread == (10 / 40, 40 / 60)
