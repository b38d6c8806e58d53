"""Tools act with a secret of their tenant: had for an attempt, closed after it, quoted nowhere; without it, nothing."""

import asyncio
import base64
import inspect
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest
import pytest_asyncio

from deputize import Result, ToolContext, ToolFailed, UpstreamUnavailable, tool
from deputize.app import open_gateway
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.definition import Secret, SecretClosed, Told
from deputize.core.errors import CredentialMissing, ScopeMissing, SecretsElsewhere
from deputize.core.events import State
from deputize.core.outcome import Outcome
from deputize.core.settings import Vault
from proofs.kit.bao import Bao
from tests.integration.lifecycle.lab import Lab, body, lab_settings, slug
from tests.integration.lifecycle.tools import RETRY, WRITES, Behaviour, Gate, Tag

pytestmark = pytest.mark.requirement("GOV-7")
VALUE = "canary/f3a9+c1d7=="
NAME = "crm/api-key"
acted: list[tuple[str, int]] = []
"""Tags and attempts of calls whose tool was really started."""
_behaviours: dict[str, Behaviour] = {}


def does(tag: str, behaviour: Behaviour) -> None:
    _behaviours[tag] = behaviour


def _act(tag: str, context: ToolContext) -> Any:
    acted.append((tag, context.attempt))
    behaviour = _behaviours.get(tag)
    return {"value": tag} if behaviour is None else behaviour(context)


async def _act_or_wait(tag: str, context: ToolContext) -> dict[str, Any]:
    answer = _act(tag, context)
    return cast(dict[str, Any], await answer if inspect.isawaitable(answer) else answer)


KEYED: dict[str, Any] = {"credential": "vault", "secret": NAME}


@tool(effects="read", namespace="lab", retry=RETRY, **KEYED)
async def keyed_look(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Look at something that wants a key."""
    return await _act_or_wait(tag, context)


@tool(effects="read", namespace="lab", returns=dict[str, Any], **KEYED)
async def keyed_tale(tag: Tag, context: ToolContext) -> Result:
    """Look at something that wants a key, and say more about it."""
    return Result(payload={"value": tag}, summary=context.credential.reveal() if context.credential else None)


@tool(effects="write", resources=["create lab.notes/{tag}"], idempotency="cannot", **WRITES, **KEYED)
async def keyed_note(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Write a note where a key is wanted."""
    return await _act_or_wait(tag, context)


@tool(effects="write", resources=["create lab.notes/{tag}"], idempotency="cannot", timeout=0.3, **WRITES, **KEYED)
def keyed_thread(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Write a note where a key is wanted, in a thread."""
    return cast(dict[str, Any], _act(tag, context))


@tool(effects="read", namespace="lab")
async def plain_look(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Look at something that wants no key."""
    return await _act_or_wait(tag, context)


@tool(effects="write", resources=["create lab.notes/{tag}"], credential="delegated", audience="https://x", **WRITES)
async def lent_note(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Write a note with a token minted for it."""
    return await _act_or_wait(tag, context)


TOOLS = [getattr(each, ATTRIBUTE) for each in (keyed_look, keyed_tale, keyed_note, keyed_thread, plain_look, lent_note)]


@asynccontextmanager
async def opened(dsn: str, folder: Path, **vault: Any) -> AsyncIterator[Lab]:
    settings = lab_settings(dsn, folder).model_copy(update={"vault": Vault(**vault)})
    db = await asyncpg.connect(dsn)
    try:
        async with open_gateway(settings, tools=TOOLS, development=True) as gateway:
            assert not gateway.refused, [problem.details for problem in gateway.refused]
            yield Lab(gateway=gateway, folder=folder, dsn=dsn, db=db)
    finally:
        await db.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def keyed(module_database: str, lab_folder: Path) -> AsyncIterator[Lab]:
    async with opened(module_database, lab_folder) as lab:
        await lab.gateway.commands.put_secret(await lab.admin(), NAME, VALUE)
        yield lab
        assert lab.rooms.credentials._lent == {}, "values of settled calls are forgotten"


def _quoted(outcome: Outcome) -> bool:
    return any(text.encode() in outcome.body for text in (VALUE, base64.b64encode(VALUE.encode()).decode()))


async def test_a_tool_gets_its_tenants_secret_and_only_while_it_runs(keyed: Lab) -> None:
    seen: list[Secret] = []

    def use(context: ToolContext) -> dict[str, Any]:
        assert context.credential is not None
        seen.append(context.credential)
        return {"fits": context.credential.reveal() == VALUE}

    does("use", use)
    for name in ("keyed_look", "keyed_note", "keyed_thread"):
        assert body(await keyed.call(name, "use"))["result"] == {"fits": True}
    assert len({id(secret) for secret in seen}) == 3
    for secret in seen:
        with pytest.raises(SecretClosed):
            secret.reveal()


async def test_a_tool_that_asks_for_none_gets_none(keyed: Lab) -> None:
    does("none", lambda context: {"none": context.credential is None})
    assert body(await keyed.call("plain_look", "none"))["result"] == {"none": True}


async def test_every_attempt_fetches_anew_and_no_value_of_any_of_them_is_told(keyed: Lab) -> None:
    commands, admin = keyed.gateway.commands, await keyed.admin()
    values: list[str] = []

    async def use(context: ToolContext) -> dict[str, Any]:
        values.append(_reveal(context))
        if context.attempt == 1:
            await commands.put_secret(admin, NAME, "canary-rotated")
            raise UpstreamUnavailable("come again")
        return {"the first one": values[0]}

    does("anew", use)
    outcome = await keyed.call("keyed_look", "anew")
    await commands.put_secret(admin, NAME, VALUE)
    assert values == [VALUE, "canary-rotated"]
    assert (slug(outcome), _quoted(outcome)) == ("credential-quoted", False)


async def test_without_its_secret_a_mutation_does_nothing_and_gives_its_key_back(keyed: Lab) -> None:
    admin = await keyed.admin()
    await keyed.gateway.commands.delete_secret(admin, NAME)
    try:
        for name in ("keyed_look", "keyed_note"):
            refused = await keyed.call(name, "missing", key="missing")
            assert (slug(refused), refused.state) == ("credential-missing", State.FAILED)
            assert body(refused)["error"]["number"] == "E3602"
            assert body(refused)["error"]["details"]["secret"] == NAME
            assert "deputize secrets set" in body(refused)["error"]["advice"]
        assert not [tag for tag, _ in acted if tag == "missing"]
        assert not await keyed.claimed(refused.call_id)
    finally:
        await keyed.gateway.commands.put_secret(admin, NAME, VALUE)
    again = await keyed.call("keyed_note", "missing", key="missing")
    assert (again.state, again.replayed) == (State.SUCCEEDED, False)
    assert len([tag for tag, _ in acted if tag == "missing"]) == 1


async def test_a_gateway_that_mints_no_tokens_lends_none(keyed: Lab) -> None:
    refused = await keyed.call("lent_note", "lent", key="lent")
    assert slug(refused) == "credential-missing"
    assert "public_url" in body(refused)["error"]["advice"]
    assert not [tag for tag, _ in acted if tag == "lent"]
    assert not await keyed.claimed(refused.call_id)


def _reveal(context: ToolContext) -> str:
    assert context.credential is not None
    return context.credential.reveal()


QUOTES: dict[str, Behaviour] = {
    "plainly": lambda context: {"echo": f"key={_reveal(context)}"},
    "in a key": lambda context: {_reveal(context): 1},
    "in basic auth": lambda context: {"header": base64.b64encode(f"user:{_reveal(context)}".encode()).decode()},
}


@pytest.mark.parametrize("name", ["keyed_look", "keyed_note"])
@pytest.mark.parametrize("how", QUOTES)
async def test_a_result_that_quotes_its_credential_is_refused(keyed: Lab, how: str, name: str) -> None:
    does(how, QUOTES[how])
    outcome = await keyed.call(name, how, key=f"{name} {how}".replace(" ", "-"))
    assert (slug(outcome), outcome.state) == ("credential-quoted", State.FAILED)
    assert body(outcome)["error"]["number"] == "E3605"
    assert not _quoted(outcome)
    if name == "keyed_note":
        # It happened: the key is kept, and repeating it repeats the refusal, not the act.
        assert (await keyed.call(name, how, key=f"{name} {how}".replace(" ", "-"))).body == outcome.body


async def test_what_a_tool_says_about_its_result_is_looked_at_too(keyed: Lab) -> None:
    outcome = await keyed.call("keyed_tale", "tale")
    assert (slug(outcome), _quoted(outcome)) == ("credential-quoted", False)


def _raises(error: type[Exception], text: str) -> Behaviour:
    def behave(context: ToolContext) -> Any:
        raise error(text.format(_reveal(context)))

    return behave


def _explains(context: ToolContext) -> Any:
    raise ToolFailed("no", details={"sent": [{"key": _reveal(context)}]}, advice=f"try {_reveal(context)}")


@pytest.mark.parametrize(
    ("how", "behaviour", "ends"),
    [
        ("said", _raises(ValueError, "bad key {}"), "tool-failed"),
        ("cut", _raises(ValueError, "x" * 186 + "{}"), "tool-failed"),
        ("lost", _raises(ConnectionError, "no answer to {}"), "outcome-unknown"),
        ("explained", _explains, "tool-failed"),
    ],
)
async def test_an_error_that_quotes_the_credential_loses_its_words_but_stays_what_it_is(
    keyed: Lab, how: str, behaviour: Behaviour, ends: str
) -> None:
    does(how, behaviour)
    outcome = await keyed.call("keyed_note", how, key=how)
    assert slug(outcome) == ends
    assert VALUE[:6].encode() not in outcome.body
    assert "held back" in body(outcome)["error"]["message"]


async def test_an_error_that_does_not_quote_it_keeps_its_words(keyed: Lab) -> None:
    does("frank", _raises(ValueError, "no such user"))
    outcome = await keyed.call("keyed_look", "frank")
    assert "no such user" in body(outcome)["error"]["message"]


async def test_a_late_end_is_held_to_the_same(keyed: Lab) -> None:
    go = threading.Event()

    def late(context: ToolContext) -> dict[str, Any]:
        value = _reveal(context)
        go.wait(10)
        return {"echo": value}

    does("late", late)
    outcome = await keyed.call("keyed_thread", "late", key="late")
    assert outcome.state is State.UNKNOWN
    go.set()
    await keyed.until_state(outcome.call_id, "failed")
    settled = await keyed.call("keyed_thread", "late", key="late")
    assert (slug(settled), _quoted(settled)) == ("credential-quoted", False)


async def test_a_canceled_call_leaves_no_value_behind(keyed: Lab) -> None:
    gate = Gate()
    does("canceled", gate)
    running = asyncio.create_task(keyed.call("keyed_look", "canceled"))
    await gate.began.wait()
    assert keyed.rooms.credentials._lent
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not keyed.rooms.credentials._lent


async def test_secrets_are_put_and_deleted_by_administrators_and_recorded_by_name(keyed: Lab) -> None:
    commands, admin = keyed.gateway.commands, await keyed.admin()
    for refused in (
        commands.put_secret(await keyed.caller(), "mail/key", VALUE),
        commands.delete_secret(await keyed.caller(), "mail/key"),
        commands.secrets(await keyed.caller()),
    ):
        with pytest.raises(ScopeMissing):
            await refused
    assert await commands.put_secret(admin, "mail/key", VALUE) == "created"
    assert await commands.put_secret(admin, "mail/key", "canary-second") == "replaced"
    listed = {each["name"]: each for each in await commands.secrets(admin)}
    assert listed["mail/key"]["updated_by"] == "root"
    assert not any("canary" in str(each) for each in listed.values())
    await commands.delete_secret(admin, "mail/key")
    with pytest.raises(CredentialMissing):
        await commands.delete_secret(admin, "mail/key")
    entries = await keyed.db.fetch("select convert_from(entry, 'utf8')::json as entry from deputize.audit_entries")
    said = [str(row["entry"]) for row in entries if '"subject":"mail/key"' in str(row["entry"])]
    assert ["put_secret" in each for each in said].count(True) == 2
    assert ["delete_secret" in each for each in said].count(True) == 1


async def test_too_little_for_a_secret_is_not_taken(keyed: Lab) -> None:
    with pytest.raises(CredentialMissing, match="8 characters"):
        await keyed.gateway.commands.put_secret(await keyed.admin(), "pin", "1234")


async def test_no_table_holds_a_value(keyed: Lab) -> None:
    """After all the calls above, quoting ones included."""
    tables = await keyed.db.fetch(
        "select table_schema, table_name from information_schema.tables "
        "where table_schema not in ('pg_catalog', 'information_schema') and table_type = 'BASE TABLE'"
    )
    assert ("deputize", "secrets") in {tuple(row) for row in tables}
    spelt = [VALUE, VALUE.encode().hex(), base64.b64encode(VALUE.encode()).decode()[:-2]]
    sealed = 0
    for schema, table in tables:
        rows = await keyed.db.fetch(f'select t::text as row from "{schema}"."{table}" t')
        assert not [row for row in rows for each in spelt if each in row["row"]], f"{schema}.{table}"
        sealed += table == "secrets" and len(rows)
    assert sealed >= 1


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bao(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bao]:
    async with Bao(tmp_path_factory.mktemp("vault") / "bao") as running:
        await running.put("dev", NAME, {"value": VALUE})
        yield running


async def test_while_the_vault_is_sealed_only_calls_that_need_it_fail_and_closed(
    bao: Bao, fresh_database: str, lab_folder: Path
) -> None:
    vault = {"kind": "openbao", "address": bao.url, "token_file": bao.token_file}
    async with opened(fresh_database, lab_folder, **vault) as lab:
        does("vaulted", lambda context: {"fits": _reveal(context) == VALUE})
        assert body(await lab.call("keyed_note", "vaulted", key="first"))["result"] == {"fits": True}
        await bao.seal()
        began = len(acted)
        refused = await lab.call("keyed_note", "vaulted", key="second")
        assert (slug(refused), body(refused)["error"]["number"]) == ("vault-unavailable", "E3601")
        assert body(refused)["execution"]["attempts"] == RETRY["max_attempts"]
        assert not await lab.claimed(refused.call_id)
        assert slug(await lab.call("keyed_look", "vaulted")) == "vault-unavailable"
        assert len(acted) == began
        assert (await lab.call("plain_look", "plain")).state is State.SUCCEEDED
        await bao.unseal()
        assert (await lab.call("keyed_note", "vaulted", key="second")).state is State.SUCCEEDED
        admin = await lab.admin()
        for elsewhere in (lab.gateway.commands.put_secret(admin, NAME, VALUE), lab.gateway.commands.secrets(admin)):
            with pytest.raises(SecretsElsewhere):
                await elsewhere


async def test_what_is_told_on_the_way_quotes_no_credential_either(keyed: Lab) -> None:
    heard: list[Told] = []

    def tell(context: ToolContext) -> dict[str, Any]:
        assert context.credential is not None
        context.progress(1, 3, "begun")
        context.progress(2, 3, f"sent {context.credential.reveal()}")
        context.partial({"header": base64.b64encode(context.credential.reveal().encode()).decode()})
        return {}

    does("tell", tell)
    outcome = await keyed.call("keyed_look", "tell", tell=heard.append)
    assert outcome.state is State.SUCCEEDED
    assert [each.message for each in heard] == ["begun"]
