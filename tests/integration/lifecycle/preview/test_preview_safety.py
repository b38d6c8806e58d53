"""Looking changes nothing and gives nothing away: what a preview acts with, and what of it is shown."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import asyncpg
import pytest
import pytest_asyncio
from pydantic import Field

from deputize import Preview, Sensitive, ToolContext, ToolFailed, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.lifecycle.preview.preview import preview_call
from tests.support.gateway_lab import GatewayLab, open_lab, parse_body
from tests.support.scripted_tools import TOOLS, Tag

pytestmark = pytest.mark.requirement("GOV-4")

OWNER, READER = "notes/key", "notes/key-readonly"


async def _fetch_value(context: ToolContext, sql: str, *values: Any) -> Any:
    assert context.credential is not None
    connection = await asyncpg.connect(context.credential.reveal())
    try:
        return await connection.fetchval(sql, *values)
    finally:
        await connection.close()


async def _preview_drop(tag: str, context: ToolContext) -> Preview:
    dsn = "" if context.credential is None else context.credential.reveal()
    if tag == "greedy":
        await _fetch_value(context, "delete from public.shelf returning 1")
    if tag == "quoting":
        return Preview(impact={"dsn": dsn})
    if tag == "blurting":
        raise ToolFailed(f"cannot use {dsn}")
    count = await _fetch_value(context, "select count(*) from public.shelf where name = $1", tag)
    return Preview(changes=[{"resource": "shelf", "op": "delete", "scope": tag, "count": count}])


KEYED_OPTIONS: dict[str, Any] = {
    "effects": "destructive", "namespace": "lab", "resources": ["delete shelf/{tag}"], "scopes": ["lab:write"],
    "credential": "vault", "secret": OWNER, "preview": _preview_drop,
}  # fmt: skip


@tool(readonly_secret=READER, **KEYED_OPTIONS)
async def drop(tag: Tag, context: ToolContext) -> int:
    """Take a thing from the shelf."""
    return int(
        await _fetch_value(
            context,
            "with gone as (delete from public.shelf where name = $1 returning 1) select count(*) from gone",
            tag,
        )
    )


@tool(**KEYED_OPTIONS)
async def drop_blindly(tag: Tag, context: ToolContext) -> int:
    """Take a thing from the shelf, with nothing to look at it with."""
    return 0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shelf_lab(module_database: str, lab_folder: Any) -> AsyncIterator[GatewayLab]:
    made = [getattr(each, ATTRIBUTE) for each in (drop, drop_blindly)]
    async with open_lab(module_database, lab_folder, tools=[*TOOLS, *made]) as lab:
        await lab.db.execute(
            "create table public.shelf (name text); insert into public.shelf values ('pear'), ('pear'), ('plum')"
        )
        for role, rights in (("shelf_owner", "select, delete"), ("shelf_reader", "select")):
            await lab.db.execute(
                f"create role {role} login password '{role}-canary-pw'; grant {rights} on public.shelf to {role}"
            )
        server = lab.dsn.split("@", 1)[1]
        for name, role in ((OWNER, "shelf_owner"), (READER, "shelf_reader")):
            dsn = f"postgresql://{role}:{role}-canary-pw@{server}"
            await lab.gateway.commands.put_secret(await lab.make_admin(), name, dsn)
        yield lab
        assert lab.runtime.credentials._secret_forms == {}


async def test_a_preview_uses_a_read_only_credential(shelf_lab: GatewayLab) -> None:
    told = parse_body(await shelf_lab.call("drop", "pear", dry_run=True))
    assert told["preview"]["changes"] == [{"resource": "shelf", "op": "delete", "scope": "pear", "count": 2}]
    assert parse_body(await shelf_lab.call("drop", "pear", key="drop"))["result"] == 2


async def test_a_preview_that_tries_to_write_cannot(shelf_lab: GatewayLab) -> None:
    before = await shelf_lab.db.fetchval("select count(*) from public.shelf")
    told = parse_body(await shelf_lab.call("drop", "greedy", dry_run=True))["preview"]
    assert told["by"] == "contract"
    assert "permission denied" in told["problem"]
    assert await shelf_lab.db.fetchval("select count(*) from public.shelf") == before


async def test_without_a_read_only_credential_a_preview_has_none(shelf_lab: GatewayLab) -> None:
    told = parse_body(await shelf_lab.call("drop_blindly", "pear", dry_run=True))["preview"]
    assert (told["by"], "AssertionError" in told["problem"]) == ("contract", True)


async def test_a_missing_read_only_secret_fails_the_preview_and_not_the_call(shelf_lab: GatewayLab) -> None:
    admin = await shelf_lab.make_admin()
    value = (await shelf_lab.runtime.credentials.vault.fetch("dev", READER, seconds=60)).reveal()
    await shelf_lab.gateway.commands.delete_secret(admin, READER)
    try:
        told = parse_body(await shelf_lab.call("drop", "plum", dry_run=True))["preview"]
        assert told["by"] == "contract"
        assert READER in told["problem"]
    finally:
        await shelf_lab.gateway.commands.put_secret(admin, READER, value)


@pytest.mark.requirement("GOV-7")
@pytest.mark.parametrize("how", ["quoting", "blurting"])
async def test_a_preview_that_quotes_its_credential_is_held_back(shelf_lab: GatewayLab, how: str) -> None:
    outcome = await shelf_lab.call("drop", how, dry_run=True)
    assert b"canary" not in outcome.body
    assert "credential" in parse_body(outcome)["preview"]["problem"]


def _preview_forget(tag: str, email: str, name: str) -> Preview:
    gone = {
        "resource": "people",
        "op": "delete",
        "scope": f"by/{email}",
        "before": {"email": email, "name": name, "token": "t-1"},
    }
    return Preview(
        changes=[gone],
        resources=[f"mailbox of {email}"],
        preconditions=[{"name": "known", "holds": True, "detail": f"{email} is known"}],
        impact={"letters": {email: 3}, "iban": "DE02"},
        guards={"email": email},
    )


@tool(
    effects="destructive", namespace="lab", resources=["delete people/{tag}"], scopes=["lab:write"],
    preview=_preview_forget, returns=dict[str, Annotated[str, Sensitive("pii")]],
)  # fmt: skip
async def forget(
    tag: Tag,
    email: Annotated[str, Field(description="Whom", examples=["a@b.example"]), Sensitive("pii")],
    name: Annotated[str, Field(description="What they are called", examples=["Ana"]), Sensitive("pii")],
) -> Any:
    """Forget a person."""
    return {}


@pytest.mark.requirement("GOV-6")
async def test_what_the_schema_marks_is_shown_neither_by_name_nor_by_value(fresh_database: str, tmp_path: Any) -> None:
    async with open_lab(fresh_database, tmp_path, tools=[getattr(forget, ATTRIBUTE)]) as lab:
        person = {"tag": "p", "email": "canary@example.org", "name": "Canary Jones"}
        outcome = await lab.call("forget", person, dry_run=True)
        assert b"anary" not in outcome.body
        shown = parse_body(outcome)["preview"]
        (change,) = shown["changes"]
        assert change["scope"] == "by/[redacted]"
        assert change["before"] == dict.fromkeys(("email", "name", "token"), "[redacted]")
        # Our own words stay, whatever an argument of the same name is marked as.
        assert shown["preconditions"] == [{"name": "known", "holds": True, "detail": "[redacted] is known"}]
        assert shown["impact"] == {"letters": {"[redacted]": 3}, "iban": "DE02"}
        assert "/changes/0/scope" in shown["redactions"]
        # What is hidden still counts: another person is another preview.
        one, other = [
            (await preview_call(lab.runtime, await lab.authorize_call("forget", {**person, "email": email}))).digest
            for email in ("a@example.org", "b@example.org")
        ]
        assert one != other
