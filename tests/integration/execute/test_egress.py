"""Test egress against real servers on this machine: allowed hosts, and attempts to bypass the checks."""

import asyncio
import ipaddress
from collections.abc import Sequence
from pathlib import Path

import pytest

from deputize.core.errors import EgressDenied, Problem, ResourceLimitExceeded, UpstreamTimeout, UpstreamUnavailable
from deputize.execute.upstreams.faults import UpstreamNotAtFault
from tests.support.egress_server import (
    make_certificate,
    make_ok_response,
    make_redirect,
    make_resolver,
    open_egress,
    run_server,
)


async def test_an_allowed_host_is_reached_under_its_own_name() -> None:
    async with (
        run_server(lambda path, host: make_ok_response(path.encode())) as server,
        open_egress("localhost") as egress,
    ):
        assert await egress.get(f"http://localhost:{server.port}/keys") == b"/keys"
        assert await egress.get(f"http://LocalHost:{server.port}/x") == b"/x"
        assert server.hosts[0] == f"localhost:{server.port}"


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.0.0.1", "127.1", "2130706433", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"],
)
async def test_this_machine_is_not_reached_by_any_of_its_names(host: str) -> None:
    async with run_server(lambda path, host: make_ok_response(b"private")) as server, open_egress() as egress:
        with pytest.raises((EgressDenied, UpstreamUnavailable)):
            await egress.get(f"https://{host}:{server.port}/")
        assert server.hosts == []


async def test_a_public_name_that_leads_to_this_machine_is_refused() -> None:
    async with open_egress(resolver=make_resolver("127.0.0.1")) as egress:
        with pytest.raises(EgressDenied, match="not public"):
            await egress.get("https://innocent.example/")


async def test_one_private_address_among_public_ones_refuses_the_name() -> None:
    async with open_egress(resolver=make_resolver("93.184.215.14", "10.0.0.7")) as egress:
        with pytest.raises(EgressDenied):
            await egress.get("https://innocent.example/")


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "fd00:ec2::254", "224.0.0.1", "0.0.0.0"])
async def test_an_allowed_name_cannot_be_turned_into_a_metadata_service(address: str) -> None:
    async with open_egress("idp.internal", resolver=make_resolver(address)) as egress:
        with pytest.raises(EgressDenied):
            await egress.get("https://idp.internal/")


async def test_a_name_is_looked_up_once_so_its_second_answer_leads_nowhere() -> None:
    asked = 0

    async def rebind(host: str, port: int) -> Sequence[str]:
        nonlocal asked
        asked += 1
        return ["127.0.0.1"] if asked == 1 else ["127.0.0.2"]

    async with run_server(lambda path, host: make_ok_response(b"first")) as server:
        async with open_egress("idp.internal", resolver=rebind) as egress:
            assert await egress.get(f"http://idp.internal:{server.port}/") == b"first"
        assert asked == 1


@pytest.mark.parametrize(
    "location",
    [
        "https://127.0.0.1:1/", "http://10.0.0.1/", "https://[::1]/", "//169.254.169.254/latest", "file:///etc/passwd",
        "https://user:secret@localhost/", "gopher://localhost/", "https://169.254.169.254/",
    ],
)  # fmt: skip
async def test_a_redirect_to_a_forbidden_place_is_refused(location: str) -> None:
    async with run_server(lambda path, host: make_redirect(location)) as server, open_egress("localhost") as egress:
        with pytest.raises(EgressDenied):
            await egress.get(f"http://localhost:{server.port}/")


async def test_a_redirect_to_an_invalid_url_is_a_fault_of_the_host() -> None:
    invalid = "https:" + "\\\\169.254.169.254/"
    async with run_server(lambda path, host: make_redirect(invalid)) as server, open_egress("localhost") as egress:
        here = f"http://localhost:{server.port}/"
        with pytest.raises(UpstreamUnavailable, match="invalid URL"):
            await egress.send(here, b"", headers={}, seconds=30.0)
        with pytest.raises(UpstreamUnavailable, match="invalid URL"):
            await egress.exchange("POST", here, body=b"", headers={}, seconds=30.0, max_bytes=1_000)


async def test_repeated_headers_are_joined() -> None:
    async with (
        run_server(lambda path, host: make_ok_response(b"", b"Link: a", b"X: y", b"Link: b")) as server,
        open_egress("localhost") as egress,
    ):
        url = f"http://localhost:{server.port}/"
        answer = await egress.exchange("GET", url, body=None, headers={}, seconds=60.0, max_bytes=1_000)
        assert (answer.headers["link"], answer.headers["x"]) == ("a, b", "y")


async def test_a_few_redirects_are_followed_and_more_are_not() -> None:
    def redirect_next(path: str, host: str) -> bytes:
        left = int(path[1:])
        return make_redirect(f"/{left - 1}") if left else make_ok_response(b"arrived")

    async with run_server(redirect_next) as server, open_egress("localhost") as egress:
        assert await egress.get(f"http://localhost:{server.port}/3") == b"arrived"
        with pytest.raises(UpstreamUnavailable, match="redirects"):
            await egress.get(f"http://localhost:{server.port}/4")


async def test_plain_http_is_for_allowed_hosts_only() -> None:
    async with open_egress() as egress:
        with pytest.raises(EgressDenied, match="https"):
            await egress.get("http://public.example/")


@pytest.mark.parametrize(
    "url", ["", "ftp://a.example/", "https://", "//a.example", "https://a:b@c.example/", "x" * 3000]
)
async def test_what_cannot_be_fetched_is_refused_without_trying(url: str) -> None:
    async with open_egress() as egress:
        with pytest.raises(EgressDenied):
            await egress.get(url)


async def test_answers_that_are_too_large_too_slow_compressed_or_broken_are_cut_off() -> None:
    answers = {
        "/large": make_ok_response(b"x" * 20_000),
        "/endless": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * 20_000,
        "/silent": b"",
        "/squeezed": make_ok_response(b"x", b"Content-Encoding: gzip"),
        "/missing": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        "/broken": b"what?\r\n\r\n",
        "/short": b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nx",
    }
    expected: dict[str, type[Problem]] = {
        "/large": ResourceLimitExceeded,
        "/endless": ResourceLimitExceeded,
        "/silent": UpstreamTimeout,
    }
    async with (
        run_server(lambda path, host: answers[path]) as server,
        open_egress("localhost", seconds=1.0) as hasty,
        open_egress("localhost", seconds=60.0) as patient,
    ):
        for path in answers:
            egress = hasty if path == "/silent" else patient
            with pytest.raises(expected.get(path, UpstreamUnavailable)):
                await egress.get(f"http://localhost:{server.port}{path}")


async def test_a_body_is_sent_once_with_its_headers_and_the_answer_comes_back() -> None:
    async with run_server(lambda path, host: make_ok_response(b"heard")) as server, open_egress("localhost") as egress:
        url = f"http://localhost:{server.port}/ask"
        assert await egress.post(url, b'{"a":1}', headers={"Content-Type": "application/json"}) == b"heard"
        assert server.bodies == [b'{"a":1}']
        assert server.heads[0].startswith("POST /ask ")
        assert "content-type: application/json" in server.heads[0].lower()


async def test_a_sent_body_follows_no_redirect() -> None:
    async with run_server(lambda path, host: make_redirect("/elsewhere")) as server, open_egress("localhost") as egress:
        with pytest.raises(UpstreamUnavailable, match="HTTP 302"):
            await egress.post(f"http://localhost:{server.port}/", b"secret")
        assert len(server.hosts) == 1


async def test_what_is_sent_and_what_comes_back_is_bounded_in_size_and_time() -> None:
    answers = {
        "/large": make_ok_response(b"x" * 200),
        "/silent": b"",
        "/created": b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n",
    }
    async with run_server(lambda path, host: answers[path]) as server, open_egress("localhost") as egress:
        here = f"http://localhost:{server.port}"
        with pytest.raises(ResourceLimitExceeded, match="request body is larger"):
            await egress.post(f"{here}/large", b"x" * 10_001)
        assert server.hosts == []
        with pytest.raises(ResourceLimitExceeded, match="larger than 100"):
            await egress.post(f"{here}/large", b"", max_bytes=100)
        with pytest.raises(UpstreamTimeout):
            await egress.post(f"{here}/silent", b"", seconds=0.1)
        with pytest.raises(UpstreamUnavailable, match="HTTP 201"):
            await egress.post(f"{here}/created", b"")


@pytest.mark.parametrize("url", ["https://localhost/", "https://10.0.0.1/", "http://public.example/", "file:///x"])
async def test_nothing_is_sent_to_where_nothing_is_fetched_from(url: str) -> None:
    async with open_egress() as egress:
        with pytest.raises(EgressDenied):
            await egress.post(url, b"secret")


async def test_a_host_that_cannot_be_found_or_does_not_listen_is_said_to_be_unavailable() -> None:
    async def fail_to_resolve(host: str, port: int) -> Sequence[str]:
        raise OSError("no such host")

    async with open_egress(resolver=fail_to_resolve) as egress:
        with pytest.raises(UpstreamUnavailable):
            await egress.get("https://nowhere.example/")
    async with run_server(lambda path, host: make_ok_response(b"")) as server:
        port = server.port
    async with open_egress("localhost") as egress:
        with pytest.raises(UpstreamUnavailable):
            await egress.get(f"http://localhost:{port}/")


async def test_a_second_address_is_tried_when_the_first_does_not_listen() -> None:
    two = make_resolver("127.0.0.9", "127.0.0.1")
    async with (
        run_server(lambda path, host: make_ok_response(b"here")) as server,
        open_egress("idp.internal", resolver=two) as egress,
    ):
        assert await egress.get(f"http://idp.internal:{server.port}/") == b"here"


async def test_tls_is_checked_against_the_name_while_the_address_is_pinned(tmp_path: Path) -> None:
    server_side, client_side = make_certificate(tmp_path, "idp.internal")
    async with run_server(lambda path, host: make_ok_response(host.encode()), server_side) as server:
        local = make_resolver("127.0.0.1")
        async with open_egress("idp.internal", "other.internal", resolver=local, tls=client_side) as egress:
            assert await egress.get(f"https://idp.internal:{server.port}/") == f"idp.internal:{server.port}".encode()
            with pytest.raises(UpstreamUnavailable):
                await egress.get(f"https://other.internal:{server.port}/")


def test_the_embedded_addresses_in_this_file_are_what_they_seem() -> None:
    assert ipaddress.IPv6Address("2002:7f00:1::").sixtofour == ipaddress.IPv4Address("127.0.0.1")


async def test_a_post_returns_the_status_and_follows_no_redirect() -> None:
    def answer(path: str, host: str) -> bytes:
        return make_redirect("http://localhost/elsewhere") if path == "/moved" else b"HTTP/1.1 204 Heard\r\n\r\n"

    async with run_server(answer) as server, open_egress("localhost") as egress:
        here = f"http://localhost:{server.port}"
        sent = {"webhook-id": "w"}
        assert await egress.send(f"{here}/", b"told", headers=sent, seconds=60) == 204
        assert await egress.send(f"{here}/moved", b"told", headers=sent, seconds=60) == 302
        assert (server.bodies, len(server.hosts)) == ([b"told", b"told"], 2)
        assert "webhook-id: w" in server.heads[0].lower()
        with pytest.raises(ResourceLimitExceeded):
            await egress.send(f"{here}/", b"x" * 10_001, headers={}, seconds=60)
        with pytest.raises(EgressDenied):
            await egress.send(f"http://127.0.0.1:{server.port}/", b"told", headers={}, seconds=60)


async def test_a_connection_of_ones_own_passes_the_same_checks() -> None:
    async with run_server(lambda path, host: make_ok_response(b"private")) as server:
        async with open_egress("localhost") as egress:
            spoken = await egress.dial(f"http://localhost:{server.port}/", asyncio.Protocol)
            assert isinstance(spoken, asyncio.Protocol)
            with pytest.raises(UpstreamUnavailable):
                await egress.dial("http://localhost:1/", asyncio.Protocol)
        for address in ("127.0.0.1", "169.254.169.254"):
            async with open_egress(resolver=make_resolver(address)) as egress:
                with pytest.raises(EgressDenied):
                    await egress.dial(f"https://innocent.example:{server.port}/", asyncio.Protocol)
        assert server.hosts == []


async def test_a_call_that_gets_no_connection_says_nothing_about_the_host() -> None:
    arrived = asyncio.Event()

    def answer(path: str, host: str) -> bytes:
        arrived.set()
        return b""

    async with run_server(answer) as server, open_egress("localhost", max_connections=1) as egress:
        url = f"http://localhost:{server.port}/"
        hanging = asyncio.create_task(egress.exchange("GET", url, body=None, headers={}, seconds=60, max_bytes=100))
        await asyncio.wait_for(arrived.wait(), 60)
        with pytest.raises(UpstreamNotAtFault, match="too many calls to localhost are waiting") as refused:
            # Half of these seconds are for the connection, so that the call does not seem to be answered slowly.
            await egress.exchange("GET", url, body=None, headers={}, seconds=5, max_bytes=100)
        assert refused.value.nothing_happened
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        assert len(server.hosts) == 1


async def test_a_request_that_is_not_valid_http_says_nothing_about_the_host() -> None:
    async with (
        run_server(lambda path, host: make_ok_response(b"")) as server,
        open_egress("localhost") as egress,
    ):
        with pytest.raises(UpstreamNotAtFault, match="not valid HTTP") as refused:
            await egress.exchange(
                "POST", f"http://localhost:{server.port}/", body=b"longer", headers={"Content-Length": "1"},
                seconds=60, max_bytes=100,
            )  # fmt: skip
        assert not refused.value.nothing_happened, "the head may have been sent"
