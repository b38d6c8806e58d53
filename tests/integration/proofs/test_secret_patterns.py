"""The search for secrets finds each spelling of one, in files and in every type of column."""

import base64
import html
import json
import secrets
from pathlib import Path
from urllib.parse import quote, quote_plus

import asyncpg
import pytest

from deputize.store.local_postgres import LocalPostgres
from proofs.kit.idp.keys import generate_keys
from proofs.kit.jws import decode_base64url
from proofs.kit.secret_patterns import SecretPatterns, copy_tables

pytestmark = pytest.mark.nightly

_SECRET = 's3cret/with+odd "chars" & <\u00fc>'


def _token() -> str:
    return generate_keys("canary")[2].sign(
        {"sub": "somebody", "iss": "https://issuer.proof", "jti": secrets.token_hex(12)}
    )


@pytest.mark.parametrize(
    "spelled",
    [
        _SECRET.encode(), quote(_SECRET, safe="").encode(), _SECRET.encode().hex().encode(), _SECRET[::-1].encode(),
        base64.b64encode(b"x" + _SECRET.encode() + b"y"), base64.urlsafe_b64encode(b"xy" + _SECRET.encode()),
        quote_plus(_SECRET).encode(), json.dumps(_SECRET).encode(), html.escape(_SECRET).encode(),
        repr(_SECRET).encode(),
    ],
)  # fmt: skip
async def test_a_secret_is_found_however_it_is_spelled(tmp_path: Path, spelled: bytes) -> None:
    needles = SecretPatterns()
    needles.add_secret("it", _SECRET)
    file = tmp_path / "log"
    file.write_bytes(b"\0\xff before " + spelled + b" after\n")
    assert [each.what for each in await needles.search("a log", file)] == ["it"]


@pytest.mark.parametrize("part", ["whole", "claims", "signature", "raw", "hex"])
async def test_a_token_is_found_by_any_part_of_it(tmp_path: Path, part: str) -> None:
    token, needles = _token(), SecretPatterns()
    needles.add_token("it", token)
    raw = decode_base64url(token.split(".")[2])
    left = {
        "whole": token.encode(), "claims": token.split(".")[1].encode(), "signature": token.split(".")[2].encode(),
        "raw": raw, "hex": raw.hex().encode(),
    }[part]  # fmt: skip
    file = tmp_path / "log"
    file.write_bytes(b"before\0" + left + b"\0after")
    assert [each.what for each in await needles.search("a log", file)] == ["it"]


async def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    needles = SecretPatterns()
    needles.add_token("it", _token())
    file = tmp_path / "log"
    file.write_text(_token())
    assert await needles.search("a log", file) == []


async def test_every_type_of_column_in_every_schema_is_searched(tmp_path: Path) -> None:
    words = [f"canary{secrets.token_hex(8)}" for _ in range(6)]
    needles = SecretPatterns()
    for word in words:
        needles.add_secret(word, word)
    server = LocalPostgres(tmp_path / "pg")
    server.start()
    try:
        connection = await asyncpg.connect(server.dsn)
        await connection.execute(
            "create schema other; create table other.t (a text, b bytea, c json, d jsonb, e text[], f bytea[])"
        )
        await connection.execute(
            "insert into other.t values ($1, $2, $3, $4, $5, $6)",
            "x" * 50_000 + words[0], words[1].encode(), f'["{words[2]}"]', f'["{words[3]}"]', [words[4]],
            [words[5].encode()],
        )  # fmt: skip
        await connection.close()
        tables = await copy_tables(server.dsn, tmp_path / "tables")
    finally:
        server.erase()
    assert set(tables) == {"other.t"}
    assert {each.what for each in await needles.search("tables", *tables.values())} == set(words)
