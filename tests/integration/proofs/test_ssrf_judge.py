"""The judge of the ssrf proof finds each planted fault, and its inventory finds code that no place covers."""

import ipaddress
from pathlib import Path

import pytest

from proofs.kit.name_server import NameServer
from proofs.ssrf.hostile_urls import Redirects, list_hostile_urls
from proofs.ssrf.inventory import list_uses
from proofs.ssrf.judge import (
    HARMLESS,
    OPERATOR_ADDRESS,
    PUBLIC_ADDRESS,
    Attempt,
    compute_figures,
    is_forbidden,
    list_blind_places,
)
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly

PLACES = [f"place {number}" for number in range(30)]
GOOD = [
    *(Attempt(place, HARMLESS, "/", "done", (OPERATOR_ADDRESS,), 0.1) for place in PLACES),
    *(
        Attempt(place, "kind", str(number), "refused EgressDenied", (), 0.1)
        for place in PLACES
        for number in range(600)
    ),
    Attempt("web.fetch", HARMLESS, "/", "done", (PUBLIC_ADDRESS,), 0.1),
    *(
        Attempt("web.fetch", "kind", str(number), "done", (PUBLIC_ADDRESS,), 0.1, methods=("GET",))
        for number in range(1_000)
    ),
]


def test_a_good_run_misses_no_bar() -> None:
    figures = compute_figures(GOOD, [])
    assert list_missed_bars("ssrf", figures) == set()
    assert list_exact_bars("ssrf", among=figures.keys()) == {
        "forbidden_connections", "uncovered_code", "places_that_connect_to_nothing", "unexpected_errors",
        "web_requests_that_change",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("attempts", "uncovered", "missed"),
    [
        ([*GOOD, Attempt("place 1", "kind", "x", "done", ("8.8.8.8", "127.0.0.1"), 0.1)], [], "forbidden_connections"),
        ([*GOOD, Attempt("place 1", HARMLESS, "x", "done", ("169.254.169.254",), 0.1)], [], "forbidden_connections"),
        ([*GOOD, Attempt("new", "kind", "x", "refused ValueError", (), 0.1)], [], "places_that_connect_to_nothing"),
        ([*GOOD, Attempt("place 1", "kind", "x", "error KeyError", (), 0.1)], [], "unexpected_errors"),
        ([*GOOD, Attempt("place 1", "kind", "x", "refused TimeoutError", (), 60.0)], [], "longest_attempt_seconds"),
        ([*GOOD, Attempt("web.fetch", "k", "x", "done", (), 0.1, methods=("POST",))], [], "web_requests_that_change"),
        (GOOD, ["new_module.py http.client"], "uncovered_code"),
        (GOOD[:300], [], "hostile_cases"),
        (GOOD[:3_000], [], "places"),
    ],
)  # fmt: skip
def test_each_fault_is_found(attempts: list[Attempt], uncovered: list[str], missed: str) -> None:
    assert missed in list_missed_bars("ssrf", compute_figures(attempts, uncovered))


def test_a_variant_that_misses_one_place_is_noticed() -> None:
    caught = [Attempt(place, "kind", "x", "done", ("10.0.0.5",), 0.1) for place in (*PLACES[1:], "web.fetch")]
    assert list_blind_places([*GOOD, *caught]) == ["place 0"]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", False), (PUBLIC_ADDRESS, False), ("2606:4700::1111", False), (OPERATOR_ADDRESS, False),
        ("127.0.0.1", True), ("10.77.0.2", True), ("169.254.169.254", True), ("168.63.129.16", True), ("::1", True),
        ("::ffff:10.0.0.1", True), ("64:ff9b::a9fe:a9fe", True), ("2002:7f00:1::", True), ("2001::1", True),
        ("2606:4700::5efe:a9fe:a9fe", True), ("fd00:ec2::254", True), ("::ffff:0:7f00:1", True),
    ],
)  # fmt: skip
def test_the_judge_has_rules_of_its_own(address: str, expected: bool) -> None:
    assert is_forbidden(address) is expected


def test_new_code_that_connects_is_found(tmp_path: Path) -> None:
    package = tmp_path / "operations"
    package.mkdir()
    (package / "new.py").write_text(
        "import urllib.request, newpackage\nfrom http import client\nfrom a.b import Egress\n"
        "egress = Egress()\nsend = self._egress.send\nawait asyncio.open_connection('h', 1)\n"
        "importlib.import_module('smtplib')\nimport json\nimport orjson\n"
    )
    assert list_uses(tmp_path) == {
        f"operations/new.py {use}"
        for use in (
            "urllib.request", "newpackage", "http.client", "a", "Egress", "egress.send", "open_connection", "smtplib",
        )
    }  # fmt: skip


def test_there_are_enough_hostile_urls_and_none_leads_to_the_operator() -> None:
    urls = list_hostile_urls(NameServer(), Redirects())
    assert len({each.url for each in urls}) >= 800
    assert not any(OPERATOR_ADDRESS in each.url for each in urls)


def test_the_name_server_answers_in_order_and_follows_aliases() -> None:
    names = NameServer()
    names.add("end.test", ["10.0.0.5"])
    names.add("a.test", [PUBLIC_ADDRESS], ["end.test"])
    query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04test\x00\x00\x01\x00\x01"
    first, second = names.build_answer(query), names.build_answer(query)
    assert (first[:2], first[7], first[-4:]) == (b"\x12\x34", 1, ipaddress.ip_address(PUBLIC_ADDRESS).packed)
    assert (second[7], second[-4:]) == (2, ipaddress.ip_address("10.0.0.5").packed)
    names.forget_queries()
    assert names.build_answer(query) == first
    assert names.build_answer(query.replace(b"\x01a", b"\x01b"))[3] & 0xF == 3
