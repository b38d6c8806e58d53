"""Rewrite the audit with what a gateway has: its login, its roles and its settings."""

import asyncio
from dataclasses import dataclass

import asyncpg

from proofs.kit.child_process import ProcessNotReady
from proofs.kit.gateway import GatewayHandle
from proofs.kit.gateway_login import use_gateway_login
from proofs.kit.http_client import HttpConnection
from proofs.red_team.arena import Arena
from proofs.red_team.attack import AttackLog, Control, Finding

NAME = "audit"
_OWNER_LOGIN = "a gateway starts with the login of the schema's owner"
CONTROL = Control(variant="red_team_owner_login", attempts=frozenset({_OWNER_LOGIN}))
_STATEMENTS = {
    "an entry is changed": "update deputize.audit_entries set entry = 'x'",
    "an entry is deleted": "delete from deputize.audit_entries",
    "the entries are truncated": "truncate deputize.audit_entries",
    "a column of the entries is dropped": "alter table deputize.audit_entries drop column entry",
    "the table of the entries is dropped": "drop table deputize.audit_entries cascade",
    "row security of the entries is switched off": "alter table deputize.audit_entries disable row level security",
    "the function that commits entries is replaced": (
        "create or replace function deputize.commit_entries() returns void language sql as 'select'"
    ),
    "the people of the entries are forgotten": "delete from deputize.subjects",
    "the reasons of decisions are deleted": "delete from deputize.decisions",
    "a person is erased without an entry": """
        insert into deputize.erasures (tenant, id, subject, names, pseudonym, requested_at)
        select s.tenant, gen_random_uuid(), s.subject, array[s.subject], deputize.hash_subject(s.salt, s.subject),
               now() - interval '1 day'
        from deputize.subjects s;
        set constraints all immediate;
        select deputize.continue_erasure(e.tenant, e.id, 1000, 0) from deputize.erasures e
    """,
    "the login becomes the owner": "set role deputize_owner",
    "the login creates a superuser": "create role intruder superuser login",
    "the login reads files of the server": "select pg_read_file('/etc/passwd')",
    "the login runs a program on the server": "copy (select 1) to program 'true'",
}


async def attack(arena: Arena, log: AttackLog) -> None:
    dsn = await arena.create_database()
    gateway = await arena.start_gateway(dsn, tools="effects.py")
    intruder = Intruder(dsn=dsn, gateway=gateway)
    await intruder.make_entry(arena.issuer.issue_token("ann"))
    for name, statement in _STATEMENTS.items():

        async def run_statement(statement: str = statement) -> Finding:
            return await intruder.run_statement(statement)

        await log.attempt(name, run_statement)
    await log.attempt(_OWNER_LOGIN, lambda: intruder.start_as_owner(arena))


@dataclass(frozen=True, kw_only=True, slots=True)
class Intruder:
    """Code that runs in the gateway's process, and so has its login."""

    dsn: str
    gateway: GatewayHandle

    async def make_entry(self, token: str) -> None:
        """Make a call, so that there is an entry to change."""
        connection = HttpConnection.for_url(self.gateway.url, token=token)
        await connection.post("/v1/calls", {"tool": "effects.look", "arguments": {"label": "x"}})
        connection.close()

    async def run_statement(self, statement: str) -> Finding:
        """Run it under the login and under each role that the login may take; every attempt is rolled back."""
        connection = await asyncpg.connect(use_gateway_login(self.dsn))
        refusals: list[str] = []
        try:
            for role in ("none", "deputize_writer", "deputize_reader"):
                transaction = connection.transaction()
                await transaction.start()
                try:
                    await connection.execute(f"set local role {role}")
                    await connection.execute(statement)
                except asyncpg.PostgresError as refusal:
                    refusals.append(f"{role}: {refusal}")
                else:
                    return Finding(succeeded=True, evidence=f"done as {role}")
                finally:
                    await transaction.rollback()
        finally:
            await connection.close()
        return Finding(succeeded=False, evidence=refusals[0])

    async def start_as_owner(self, arena: Arena) -> Finding:
        """Start the gateway again, with the owner's login in its settings."""
        settings = self.gateway.folder / "deputize.toml"
        await self.gateway.child.stop()
        settings.write_text(settings.read_text().replace(use_gateway_login(self.dsn), self.dsn))
        try:
            async with asyncio.timeout(60):
                await (self.gateway.restart() if arena.variant is None else arena.restart_variant(self.gateway))
        except ProcessNotReady as refusal:
            return Finding(succeeded=False, evidence=str(refusal).splitlines()[-1][:120])
        return Finding(succeeded=True, evidence="the gateway answers")
