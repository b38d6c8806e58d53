"""What tools and servers say in an error shows no secret and no file, and stays readable."""

import time

import pytest

from deputize.core.sensitive.known_paths import KnownPaths
from deputize.core.sensitive.text import redact_error_text, redact_personal_data, redact_secrets, redact_texts
from tests.unit.core.sensitive.labelled_texts import PERSONAL_DATA

pytestmark = pytest.mark.requirement("GOV-6")

SECRETS = [
    ("login failed for password hunter2", "hunter2"),
    ("password=hunter2 is wrong", "hunter2"),
    ("{'password': 'two words', 'id': 7}", "two words"),
    ("the api key is 'abc'", "abc"),
    ("my_password=abc", "abc"),
    ("x-api-key: 99", "99"),
    ("invalid token 'abc'", "abc"),
    ("Authorization: Bearer abcdefghijkl", "abcdefghijkl"),
    ("postgres://ana:hunter2@db.example/shop is down", "hunter2"),
    ("GET https://api.example/v1?api_key=abc&page=2", "abc"),
    ("eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbmEifQ.c2lnbmVk expired", "c2lnbmVk"),
    ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----", "MIIE"),
    ("-----BEGIN PRIVATE KEY-----\nMIIE", "MIIE"),
    ("used AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
    ("used ghp_0123456789abcdefghij", "ghp_0123456789abcdefghij"),
]
PATHS = [
    ("cannot read /root/.ssh/id_rsa", "ssh"),
    ("ENOENT: no such file, open '/home/ana/deputize.toml'", "ana"),
    ("failed:/etc/passwd", "etc"),
    ("no ~/keys/one", "keys"),
    ("no ../keys/one", "keys"),
    ("open C:\\Users\\ana\\x", "ana"),
    ("share \\\\host\\ana", "ana"),
    ("file:///srv/ana is gone", "ana"),
    ("secrets/prod.pem is missing", "prod"),
]
HARMLESS = [
    "the token is invalid", "the password expired yesterday", "token expired", "and/or 3/4 of application/json",
    "https://api.example.com/v1/orders answered 503", "the secret key must have 8 characters", "order 7 is gone",
]  # fmt: skip


@pytest.mark.parametrize(("text", "secret"), SECRETS)
def test_secrets_are_recognized_by_shape(text: str, secret: str) -> None:
    assert secret not in redact_secrets(text)
    assert "[redacted]" in redact_secrets(text)


@pytest.mark.parametrize(("text", "part"), PATHS)
def test_paths_are_hidden(text: str, part: str) -> None:
    assert part not in redact_error_text(text)
    assert "[path]" in redact_error_text(text)


def test_paths_that_the_reader_knows_are_shown() -> None:
    known = KnownPaths({"path": "/home/ana/a.txt", "more": ["certs/own.pem"]}, lambda: ["/srv/data"])
    for text in (
        "ENOENT: no such file or directory, open '/home/ana/a.txt'",
        "Access denied - path outside allowed directories: /home/ana/a.txt not in /srv/data",
        "cannot read /srv/data/2026/b.txt.",
        "certs/own.pem is missing",
    ):
        assert redact_error_text(text, known) == text
    for text, hidden in (
        ("open '/home/ana/b.txt'", "b.txt"),
        ("open /srv/data/../keys/one", "keys"),
        ("open /srv/database/one", "one"),
        ("open /home/ana/a.txt/more", "more"),
        ("certs/other.pem is missing", "other"),
        ("cannot open /srv/data/a with password=tr0ub4dor", "tr0ub4dor"),
    ):
        assert hidden not in redact_error_text(text, known)
    # More text than is searched, and more paths than are looked up.
    assert redact_error_text("open /home/ana", KnownPaths(["/home/ana", "x" * 70_000])) == "open [path]"
    assert redact_error_text("/a " * 600, KnownPaths("/a")).endswith("[path] ")


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert redact_error_text(text) == text


def test_every_text_of_a_document_is_redacted() -> None:
    document = {"content": [{"text": "password=a1"}, 7, None], "/etc/x": True}
    assert redact_texts(document) == {"content": [{"text": "password=[redacted]"}, 7, None], "[path]": True}


@pytest.mark.parametrize("part", ["password='", "token:", "/a", "'", "a.key", "-----BEGIN ", "://", " ", "\ud800"])
def test_no_text_takes_long(part: str) -> None:
    text = part * (1_000_000 // len(part))
    started_at = time.thread_time()
    redact_error_text(text)
    assert time.thread_time() - started_at < 2


@pytest.mark.parametrize(
    ("text", "visible_text"),
    [
        ("chat with zoe@example.org", "chat with [email]"),
        ("zoe +49 171 2345678", "zoe [phone]"),
        ("4111111111111111", "[card]"),
        ("DE89370400440532013000", "[iban]"),
        # Ids stay, also those that look like a secret.
        ("toolu_01A09q90qw90lq917835lq9", "toolu_01A09q90qw90lq917835lq9"),
        ("sk_live_4eC39HqLyjWDarjtT1zdp7dc", "sk_live_4eC39HqLyjWDarjtT1zdp7dc"),
        ("01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b", "01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b"),
        ("17", "17"),
    ],
)
def test_ids_that_callers_choose_lose_personal_data_only(text: str, visible_text: str) -> None:
    assert redact_personal_data(text) == visible_text


def test_every_shape_of_personal_data_is_hidden_in_ids_too() -> None:
    for text, mark, hidden_part in PERSONAL_DATA:
        visible_text = redact_personal_data(text)
        assert mark in visible_text, text
        assert hidden_part not in visible_text, text
