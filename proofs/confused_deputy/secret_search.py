"""Search every place that must hold no secret; plant one in each to show that the search finds it."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx2

from proofs.confused_deputy.bad_tokens import BadToken
from proofs.confused_deputy.testbed import Testbed
from proofs.kit.http_client import HttpConnection
from proofs.kit.secret_patterns import SecretMatch, SecretPatterns, copy_tables
from proofs.kit.upstream_server import CREDENTIALS_FILE, REQUESTS_FILE

UPSTREAM, CREDENTIALS, LOGS, SPANS = "what the upstream received", "credentials upstream", "logs", "spans"
ENTRIES, TABLES, FILES = "audit entries", "tables", "the database's files"
_ENTRIES_TABLE = "deputize.audit_entries"
_PLANTED_TABLE = """
    create schema engine;
    create table engine.planted (a text, b bytea, c json, d jsonb, e text[], f bytea[], g varchar, h name);
"""


@dataclass(kw_only=True, slots=True)
class SearchResult:
    pattern_count: int = 0
    table_count: int = 0
    span_bytes: int = 0
    matches: list[SecretMatch] = field(default_factory=list)
    missed_plants: list[str] = field(default_factory=list)
    """What was planted and not found."""

    def add_matches(self, matches: Sequence[SecretMatch], plants: Mapping[str, str]) -> None:
        """Tell what was found from what was planted, by name and place, to be found."""
        match_keys = {(each.place, each.what) for each in matches}
        self.missed_plants += [
            f"{name} in {place}" for name, place in plants.items() if (place, name) not in match_keys
        ]
        self.matches += [each for each in matches if each.what not in plants]


class Search:
    def __init__(self, testbed: Testbed) -> None:
        self._site = testbed
        self._inbound_patterns = SecretPatterns()
        self._all_patterns = SecretPatterns()
        self._plants: dict[str, str] = {}

    def add_inbound(self, tokens: dict[str, str], idp_token: str) -> None:
        """No part of these may be anywhere, not even where credentials are shown."""
        for whose, token in tokens.items():
            self._inbound_patterns.add_token(f"the token of {whose}", token)
            self._all_patterns.add_token(f"the token of {whose}", token)
        for patterns in (self._inbound_patterns, self._all_patterns):
            patterns.add_header("the beginning of a provider's token", idp_token)

    def add_refused(self, tokens: Iterable[BadToken]) -> None:
        """What was refused is nobody's business either, if it is long enough to be recognised."""
        for bad in tokens:
            parts = bad.token.split(".")
            if len(parts) == 3 and min(len(parts[1]), len(parts[2])) >= 64:
                self._all_patterns.add_damaged(f"the refused token ({bad.label})", bad.token)

    def add_minted(self, tokens: dict[str, str]) -> None:
        for call, token in tokens.items():
            self._all_patterns.add_token(f"the credential of call {call}", token)
        for token in list(tokens.values())[:1]:
            self._all_patterns.add_header("the beginning of a minted token", token)

    def add_secrets(self) -> None:
        for tenant, secret in self._site.secrets.items():
            self._all_patterns.add_secret(f"the secret of {tenant}", secret)

    def add_sessions(self) -> None:
        """What a browser keeps is as good as a token, and only the browser keeps it."""
        for whose, session in self._site.sessions.items():
            self._all_patterns.add_secret(f"the session of {whose}", session)

    async def search_all(self) -> SearchResult:
        testbed, result = self._site, SearchResult()
        await self._plant_secrets()
        tables = await copy_tables(testbed.postgres.dsn, testbed.sandbox.folder / "tables")
        logs = sorted(each for whose in ("gateway", "worker") for each in testbed.sandbox.folder.glob(f"{whose}*.log"))
        rest = [file for name, file in tables.items() if name != _ENTRIES_TABLE]
        places: dict[str, list[Path]] = {
            UPSTREAM: [testbed.records / REQUESTS_FILE], LOGS: logs, SPANS: [testbed.spans],
            ENTRIES: [tables[_ENTRIES_TABLE]], TABLES: rest, FILES: [testbed.postgres.folder],
        }  # fmt: skip
        matches = [each for place, paths in places.items() for each in await self._all_patterns.search(place, *paths)]
        matches += await self.search_upstream()
        result.pattern_count, result.table_count = len(self._all_patterns), len(tables)
        result.span_bytes = testbed.spans.stat().st_size
        result.add_matches(matches, self._plants)
        return result

    async def search_upstream(self) -> list[SecretMatch]:
        """Tokens of callers among the credentials that tools showed."""
        return await self._inbound_patterns.search(CREDENTIALS, self._site.records / CREDENTIALS_FILE)

    async def _plant_secrets(self) -> None:
        """Ours to find: one in each place, and in tables one in each type of column."""
        testbed, create_plant = self._site, self._create_plant
        admin = HttpConnection.for_url(testbed.url, token=next(iter(testbed.inbound.values())))
        await admin.post("/v1/calls", {"tool": "deputy.blurt", "arguments": {"word": create_plant("in a log", LOGS)}})
        await admin.post("/v1/revocations", {"kind": "token", "value": create_plant("in an entry", ENTRIES)})
        admin.close()
        async with httpx2.AsyncClient(trust_env=False, timeout=60.0) as client:
            await client.post(f"{testbed.upstream}/planted", content=create_plant("upstream", UPSTREAM))
            credential = create_plant("as a credential", CREDENTIALS, self._inbound_patterns)
            await client.post(f"{testbed.upstream}/planted", headers={"authorization": f"Bearer {credential}"})
            await client.post(f"{testbed.sink}/v1/traces", content=create_plant("in a span", SPANS))
        connection: asyncpg.Connection[Any] = await asyncpg.connect(testbed.postgres.dsn)
        try:
            await connection.execute(_PLANTED_TABLE)
            text = [
                create_plant(f"in a column of {kind}", TABLES) for kind in ("text", "bytea", "json", "jsonb", "text[]")
            ]
            more = [create_plant(f"in a column of {kind}", TABLES) for kind in ("bytea[]", "varchar", "name")]
            await connection.execute(
                "insert into engine.planted values ($1, $2, $3, $4, $5, $6, $7, $8)",
                text[0], text[1].encode(), f'{{"x": "{text[2]}"}}', f'{{"x": "{text[3]}"}}', [text[4]],
                [more[0].encode()], more[1], more[2],
            )  # fmt: skip
            await connection.execute("insert into engine.planted (a) values ($1)", create_plant("in a file", FILES))
            await connection.execute("checkpoint")
        finally:
            await connection.close()

    def _create_plant(self, name: str, place: str, patterns: SecretPatterns | None = None) -> str:
        secret = f"canary{secrets.token_hex(12)}"
        (patterns or self._all_patterns).add_secret(f"planted {name}", secret)
        self._plants[f"planted {name}"] = place
        return secret
