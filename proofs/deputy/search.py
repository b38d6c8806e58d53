"""Where secrets must not be, the search for them there, and one planted in each place to show that it would be found.

Above: `proofs.confused_deputy`. Below: `kit/canary`.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx2

from proofs.deputy.site import Site
from proofs.kit.bad_tokens import Bad
from proofs.kit.canary import Found, Needles, copy_tables
from proofs.kit.upstream import RECEIVED, SHOWN
from proofs.kit.wire import Line

UPSTREAM, CREDENTIALS, LOGS, SPANS = "what the upstream received", "credentials upstream", "logs", "spans"
ENTRIES, TABLES, FILES = "audit entries", "tables", "the database's files"
_ENTRIES_TABLE = "deputize.audit_entries"
_PLANTED_TABLE = """
    create schema engine;
    create table engine.planted (a text, b bytea, c json, d jsonb, e text[], f bytea[], g varchar, h name);
"""


@dataclass(kw_only=True, slots=True)
class Searched:
    needles: int = 0
    tables: int = 0
    span_bytes: int = 0
    found: list[Found] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    """What was planted and not found."""


class Search:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._inbound = Needles()
        self._everything = Needles()
        self._planted: dict[str, str] = {}

    def add_inbound(self, tokens: dict[str, str], idp_token: str) -> None:
        """No part of these may be anywhere, not even where credentials are shown."""
        for whose, token in tokens.items():
            self._inbound.add_token(f"the token of {whose}", token)
            self._everything.add_token(f"the token of {whose}", token)
        for needles in (self._inbound, self._everything):
            needles.add_header("the beginning of a provider's token", idp_token)

    def add_refused(self, tokens: Iterable[Bad]) -> None:
        """What was refused is nobody's business either, if it is long enough to be recognised."""
        for bad in tokens:
            parts = bad.token.split(".")
            if len(parts) == 3 and min(len(parts[1]), len(parts[2])) >= 64:
                self._everything.add_damaged(f"the refused token ({bad.label})", bad.token)

    def add_minted(self, tokens: dict[str, str]) -> None:
        for call, token in tokens.items():
            self._everything.add_token(f"the credential of call {call}", token)
        for token in list(tokens.values())[:1]:
            self._everything.add_header("the beginning of a minted token", token)

    def add_secrets(self) -> None:
        for tenant, secret in self._site.secrets.items():
            self._everything.add_secret(f"the secret of {tenant}", secret)

    def add_sessions(self) -> None:
        """What a browser keeps is as good as a token, and only the browser keeps it."""
        for whose, session in self._site.sessions.items():
            self._everything.add_secret(f"the session of {whose}", session)

    async def run(self) -> Searched:
        site, searched = self._site, Searched()
        await self._plant()
        tables = await copy_tables(site.postgres.dsn, site.world.folder / "tables")
        logs = sorted(each for whose in ("gateway", "worker") for each in site.world.folder.glob(f"{whose}*.log"))
        rest = [file for name, file in tables.items() if name != _ENTRIES_TABLE]
        places: dict[str, list[Path]] = {
            UPSTREAM: [site.records / RECEIVED], LOGS: logs, SPANS: [site.spans],
            ENTRIES: [tables[_ENTRIES_TABLE]], TABLES: rest, FILES: [site.postgres.folder],
        }  # fmt: skip
        found = [each for place, paths in places.items() for each in await self._everything.look(place, *paths)]
        found += await self.upstream()
        searched.needles, searched.tables = len(self._everything), len(tables)
        searched.span_bytes = site.spans.stat().st_size
        seen = {(each.place, each.what) for each in found}
        searched.missed = [f"{name} in {place}" for name, place in self._planted.items() if (place, name) not in seen]
        searched.found = [each for each in found if each.what not in self._planted]
        return searched

    async def upstream(self) -> list[Found]:
        """Tokens of callers among the credentials that tools showed."""
        return await self._inbound.look(CREDENTIALS, self._site.records / SHOWN)

    async def _plant(self) -> None:
        """Ours to find: one in each place, and in tables one in each type of column."""
        site, word = self._site, self._word
        admin = Line.to(site.url, token=next(iter(site.inbound.values())))
        await admin.post("/v1/calls", {"tool": "deputy.blurt", "arguments": {"word": word("in a log", LOGS)}})
        await admin.post("/v1/revocations", {"kind": "token", "value": word("in an entry", ENTRIES)})
        admin.close()
        async with httpx2.AsyncClient(trust_env=False) as client:
            await client.post(f"{site.upstream}/planted", content=word("upstream", UPSTREAM))
            shown = word("as a credential", CREDENTIALS, self._inbound)
            await client.post(f"{site.upstream}/planted", headers={"authorization": f"Bearer {shown}"})
            await client.post(f"{site.sink}/v1/traces", content=word("in a span", SPANS))
        connection: asyncpg.Connection[Any] = await asyncpg.connect(site.postgres.dsn)
        try:
            await connection.execute(_PLANTED_TABLE)
            text = [word(f"in a column of {kind}", TABLES) for kind in ("text", "bytea", "json", "jsonb", "text[]")]
            more = [word(f"in a column of {kind}", TABLES) for kind in ("bytea[]", "varchar", "name")]
            await connection.execute(
                "insert into engine.planted values ($1, $2, $3, $4, $5, $6, $7, $8)",
                text[0], text[1].encode(), f'{{"x": "{text[2]}"}}', f'{{"x": "{text[3]}"}}', [text[4]],
                [more[0].encode()], more[1], more[2],
            )  # fmt: skip
            await connection.execute("insert into engine.planted (a) values ($1)", word("in a file", FILES))
            await connection.execute("checkpoint")
        finally:
            await connection.close()

    def _word(self, name: str, place: str, needles: Needles | None = None) -> str:
        planted = f"canary{secrets.token_hex(12)}"
        (needles or self._everything).add_secret(f"planted {name}", planted)
        self._planted[f"planted {name}"] = place
        return planted
