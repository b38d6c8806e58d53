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
from deputize.core.contract.tools import Secret, SecretClosed, ToolProgress
from deputize.core.errors import CredentialMissing, ExternalVaultInUse, ScopeMissing
from deputize.core.outcome import Outcome
from deputize.core.settings import VaultSettings
from deputize.core.states import State
from proofs.kit.openbao import OpenBaoServer
from tests.support.gateway_lab import GatewayLab, error_slug, lab_settings, parse_body
from tests.support.scripted_tools import AMPLE_SECONDS, BRIEF_WRITE_OPTIONS, RETRY, WRITE_OPTIONS, Behaviour, Gate, Tag
from tests.support.scripted_tools import TOOLS as UNDO_TOOLS

pytestmark = pytest.mark.requirement("GOV-7")
VALUE = "canary/f3a9+c1d7=="
NAME = "crm/api-key"
attempts: list[tuple[str, int]] = []
"""Tags and attempts of calls whose tool was really started."""
_behaviours: dict[str, Behaviour] = {}


def set_behaviour(tag: str, behaviour: Behaviour) -> None:
    _behaviours[tag] = behaviour


def _run_behaviour(tag: str, context: ToolContext) -> Any:
    attempts.append((tag, context.attempt))
    behaviour = _behaviours.get(tag)
    return {"value": tag} if behaviour is None else behaviour(context)


async def _await_behaviour(tag: str, context: ToolContext) -> dict[str, Any]:
    answer = _run_behaviour(tag, context)
    return cast(dict[str, Any], await answer if inspect.isawaitable(answer) else answer)


KEYED_OPTIONS: dict[str, Any] = {"credential": "vault", "secret": NAME}


@tool(effects="read", namespace="lab", retry=RETRY, timeout=AMPLE_SECONDS, **KEYED_OPTIONS)
async def keyed_look(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Look at something that wants a key."""
    return await _await_behaviour(tag, context)


@tool(effects="read", namespace="lab", returns=dict[str, Any], timeout=AMPLE_SECONDS, **KEYED_OPTIONS)
async def keyed_tale(tag: Tag, context: ToolContext) -> Result:
    """Look at something that wants a key, and say more about it."""
    return Result(payload={"value": tag}, summary=context.credential.reveal() if context.credential else None)


@tool(effects="write", resources=["create lab.notes/{tag}"], idempotency="cannot", **WRITE_OPTIONS, **KEYED_OPTIONS)
async def keyed_note(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Write a note where a key is wanted."""
    return await _await_behaviour(tag, context)


@tool(
    effects="write",
    resources=["create lab.notes/{tag}"],
    idempotency="cannot",
    **BRIEF_WRITE_OPTIONS,
    **KEYED_OPTIONS,
)
def keyed_thread(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Write a note where a key is wanted, in a thread."""
    return cast(dict[str, Any], _run_behaviour(tag, context))


@tool(effects="read", namespace="lab", timeout=AMPLE_SECONDS)
async def plain_look(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Look at something that wants no key."""
    return await _await_behaviour(tag, context)


@tool(
    effects="write", resources=["create lab.notes/{tag}"], credential="delegated", audience="https://x", **WRITE_OPTIONS
)
async def lent_note(tag: Tag, context: ToolContext) -> dict[str, Any]:
    """Write a note with a token minted for it."""
    return await _await_behaviour(tag, context)


TOOLS = [getattr(each, ATTRIBUTE) for each in (keyed_look, keyed_tale, keyed_note, keyed_thread, plain_look, lent_note)]


@asynccontextmanager
async def open_vault_lab(dsn: str, folder: Path, **vault: Any) -> AsyncIterator[GatewayLab]:
    settings = lab_settings(dsn, folder).model_copy(update={"vault": VaultSettings(**vault)})
    db = await asyncpg.connect(dsn)
    try:
        async with open_gateway(settings, tools=[*UNDO_TOOLS, *TOOLS], development=True) as gateway:
            assert not gateway.startup_problems, [problem.details for problem in gateway.startup_problems]
            yield GatewayLab(gateway=gateway, folder=folder, dsn=dsn, db=db)
    finally:
        await db.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def keyed_lab(module_database: str, lab_folder: Path) -> AsyncIterator[GatewayLab]:
    async with open_vault_lab(module_database, lab_folder) as lab:
        await lab.gateway.commands.put_secret(await lab.make_admin(), NAME, VALUE)
        yield lab
        assert lab.runtime.credentials._secret_forms == {}, "values of settled calls are forgotten"


def _is_quoted(outcome: Outcome) -> bool:
    return any(text.encode() in outcome.body for text in (VALUE, base64.b64encode(VALUE.encode()).decode()))


async def test_a_tool_gets_its_tenants_secret_and_only_while_it_runs(keyed_lab: GatewayLab) -> None:
    seen: list[Secret] = []

    def use(context: ToolContext) -> dict[str, Any]:
        assert context.credential is not None
        seen.append(context.credential)
        return {"fits": context.credential.reveal() == VALUE}

    set_behaviour("use", use)
    for name in ("keyed_look", "keyed_note", "keyed_thread"):
        assert parse_body(await keyed_lab.call(name, "use"))["result"] == {"fits": True}
    assert len({id(secret) for secret in seen}) == 3
    for secret in seen:
        with pytest.raises(SecretClosed):
            secret.reveal()


async def test_a_tool_that_asks_for_none_gets_none(keyed_lab: GatewayLab) -> None:
    set_behaviour("none", lambda context: {"none": context.credential is None})
    assert parse_body(await keyed_lab.call("plain_look", "none"))["result"] == {"none": True}


async def test_every_attempt_fetches_the_secret_again_and_none_is_revealed(keyed_lab: GatewayLab) -> None:
    commands, admin = keyed_lab.gateway.commands, await keyed_lab.make_admin()
    values: list[str] = []

    async def use(context: ToolContext) -> dict[str, Any]:
        values.append(_reveal_secret(context))
        if context.attempt == 1:
            await commands.put_secret(admin, NAME, "canary-rotated")
            raise UpstreamUnavailable("come again")
        return {"the first one": values[0]}

    set_behaviour("anew", use)
    outcome = await keyed_lab.call("keyed_look", "anew")
    await commands.put_secret(admin, NAME, VALUE)
    assert values == [VALUE, "canary-rotated"]
    assert (error_slug(outcome), _is_quoted(outcome)) == ("credential-quoted", False)


async def test_without_its_secret_a_mutation_does_nothing_and_gives_its_key_back(keyed_lab: GatewayLab) -> None:
    admin = await keyed_lab.make_admin()
    await keyed_lab.gateway.commands.delete_secret(admin, NAME)
    try:
        for name in ("keyed_look", "keyed_note"):
            refused = await keyed_lab.call(name, "missing", key="missing")
            assert (error_slug(refused), refused.state) == ("credential-missing", State.FAILED)
            assert parse_body(refused)["error"]["number"] == "E3602"
            assert parse_body(refused)["error"]["details"]["secret"] == NAME
            assert "deputize secrets set" in parse_body(refused)["error"]["advice"]
        assert not [tag for tag, _ in attempts if tag == "missing"]
        assert not await keyed_lab.has_claim(refused.call_id)
    finally:
        await keyed_lab.gateway.commands.put_secret(admin, NAME, VALUE)
    again = await keyed_lab.call("keyed_note", "missing", key="missing")
    assert (again.state, again.is_replay) == (State.SUCCEEDED, False)
    assert len([tag for tag, _ in attempts if tag == "missing"]) == 1


async def test_a_gateway_that_mints_no_tokens_lends_none(keyed_lab: GatewayLab) -> None:
    refused = await keyed_lab.call("lent_note", "lent", key="lent")
    assert error_slug(refused) == "credential-missing"
    assert "public_url" in parse_body(refused)["error"]["advice"]
    assert not [tag for tag, _ in attempts if tag == "lent"]
    assert not await keyed_lab.has_claim(refused.call_id)


def _reveal_secret(context: ToolContext) -> str:
    assert context.credential is not None
    return context.credential.reveal()


QUOTES: dict[str, Behaviour] = {
    "plainly": lambda context: {"echo": f"key={_reveal_secret(context)}"},
    "in a key": lambda context: {_reveal_secret(context): 1},
    "in basic auth": lambda context: {"header": base64.b64encode(f"user:{_reveal_secret(context)}".encode()).decode()},
}


@pytest.mark.parametrize("name", ["keyed_look", "keyed_note"])
@pytest.mark.parametrize("how", QUOTES)
async def test_a_result_that_quotes_its_credential_is_refused(keyed_lab: GatewayLab, how: str, name: str) -> None:
    set_behaviour(how, QUOTES[how])
    outcome = await keyed_lab.call(name, how, key=f"{name} {how}".replace(" ", "-"))
    assert (error_slug(outcome), outcome.state) == ("credential-quoted", State.FAILED)
    assert parse_body(outcome)["error"]["number"] == "E3605"
    assert not _is_quoted(outcome)
    if name == "keyed_note":
        # It happened: the key is kept, and repeating it repeats the refusal, not the act.
        assert (await keyed_lab.call(name, how, key=f"{name} {how}".replace(" ", "-"))).body == outcome.body


async def test_result_metadata_is_scanned_for_credentials_too(keyed_lab: GatewayLab) -> None:
    outcome = await keyed_lab.call("keyed_tale", "tale")
    assert (error_slug(outcome), _is_quoted(outcome)) == ("credential-quoted", False)


def _raise_quoting(error: type[Exception], text: str) -> Behaviour:
    def behave(context: ToolContext) -> Any:
        raise error(text.format(_reveal_secret(context)))

    return behave


def _fail_quoting(context: ToolContext) -> Any:
    raise ToolFailed(
        "no", details={"sent": [{"key": _reveal_secret(context)}]}, advice=f"try {_reveal_secret(context)}"
    )


@pytest.mark.parametrize(
    ("how", "behaviour", "ends"),
    [
        ("said", _raise_quoting(ValueError, "bad key {}"), "tool-failed"),
        ("cut", _raise_quoting(ValueError, "x" * 186 + "{}"), "tool-failed"),
        ("lost", _raise_quoting(ConnectionError, "no answer to {}"), "outcome-unknown"),
        ("explained", _fail_quoting, "tool-failed"),
    ],
)
async def test_an_error_that_quotes_the_credential_loses_its_words_but_stays_what_it_is(
    keyed_lab: GatewayLab, how: str, behaviour: Behaviour, ends: str
) -> None:
    set_behaviour(how, behaviour)
    outcome = await keyed_lab.call("keyed_note", how, key=how)
    assert error_slug(outcome) == ends
    assert VALUE[:6].encode() not in outcome.body
    assert "withheld" in parse_body(outcome)["error"]["message"]


async def test_an_error_that_does_not_quote_it_keeps_its_words(keyed_lab: GatewayLab) -> None:
    set_behaviour("frank", _raise_quoting(ValueError, "no such user"))
    outcome = await keyed_lab.call("keyed_look", "frank")
    assert "no such user" in parse_body(outcome)["error"]["message"]


async def test_a_late_end_is_held_to_the_same(keyed_lab: GatewayLab) -> None:
    go = threading.Event()

    def end_late(context: ToolContext) -> dict[str, Any]:
        value = _reveal_secret(context)
        go.wait(60)
        return {"echo": value}

    set_behaviour("late", end_late)
    outcome = await keyed_lab.call("keyed_thread", "late", key="late")
    assert outcome.state is State.UNKNOWN
    go.set()
    await keyed_lab.wait_for_state(outcome.call_id, "failed")
    settled = await keyed_lab.call("keyed_thread", "late", key="late")
    assert (error_slug(settled), _is_quoted(settled)) == ("credential-quoted", False)


async def test_a_canceled_call_leaves_no_value_behind(keyed_lab: GatewayLab) -> None:
    gate = Gate()
    set_behaviour("canceled", gate)
    running = asyncio.create_task(keyed_lab.call("keyed_look", "canceled"))
    await gate.began.wait()
    assert keyed_lab.runtime.credentials._secret_forms
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not keyed_lab.runtime.credentials._secret_forms


async def test_secrets_are_put_and_deleted_by_administrators_and_recorded_by_name(keyed_lab: GatewayLab) -> None:
    commands, admin = keyed_lab.gateway.commands, await keyed_lab.make_admin()
    for refused in (
        commands.put_secret(await keyed_lab.make_caller(), "mail/key", VALUE),
        commands.delete_secret(await keyed_lab.make_caller(), "mail/key"),
        commands.list_secrets(await keyed_lab.make_caller()),
    ):
        with pytest.raises(ScopeMissing):
            await refused
    assert await commands.put_secret(admin, "mail/key", VALUE) == "created"
    assert await commands.put_secret(admin, "mail/key", "canary-second") == "replaced"
    listed = {each["name"]: each for each in await commands.list_secrets(admin)}
    assert listed["mail/key"]["updated_by"] == "root"
    assert not any("canary" in str(each) for each in listed.values())
    await commands.delete_secret(admin, "mail/key")
    with pytest.raises(CredentialMissing):
        await commands.delete_secret(admin, "mail/key")
    entries = await keyed_lab.db.fetch("select convert_from(entry, 'utf8')::json as entry from deputize.audit_entries")
    said = [str(row["entry"]) for row in entries if '"subject":"mail/key"' in str(row["entry"])]
    assert ["put_secret" in each for each in said].count(True) == 2
    assert ["delete_secret" in each for each in said].count(True) == 1


async def test_too_little_for_a_secret_is_not_taken(keyed_lab: GatewayLab) -> None:
    with pytest.raises(CredentialMissing, match="8 to 65536 characters"):
        await keyed_lab.gateway.commands.put_secret(await keyed_lab.make_admin(), "pin", "1234")


async def test_no_table_holds_a_value(keyed_lab: GatewayLab) -> None:
    """After all the calls above, quoting ones included."""
    tables = await keyed_lab.db.fetch(
        "select table_schema, table_name from information_schema.tables "
        "where table_schema not in ('pg_catalog', 'information_schema') and table_type = 'BASE TABLE'"
    )
    assert ("deputize", "secrets") in {tuple(row) for row in tables}
    spelt = [VALUE, VALUE.encode().hex(), base64.b64encode(VALUE.encode()).decode()[:-2]]
    sealed = 0
    for schema, table in tables:
        rows = await keyed_lab.db.fetch(f'select t::text as row from "{schema}"."{table}" t')
        assert not [row for row in rows for each in spelt if each in row["row"]], f"{schema}.{table}"
        sealed += table == "secrets" and len(rows)
    assert sealed >= 1


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bao(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenBaoServer]:
    async with OpenBaoServer(tmp_path_factory.mktemp("vault") / "bao") as running:
        await running.put_secret("dev", NAME, {"value": VALUE})
        yield running


async def test_while_the_vault_is_sealed_only_calls_that_need_it_fail_and_closed(
    bao: OpenBaoServer, fresh_database: str, lab_folder: Path
) -> None:
    vault = {"kind": "openbao", "address": bao.url, "token_file": bao.token_file, "seconds": 30}
    async with open_vault_lab(fresh_database, lab_folder, **vault) as lab:
        set_behaviour("vaulted", lambda context: {"fits": _reveal_secret(context) == VALUE})
        assert parse_body(await lab.call("keyed_note", "vaulted", key="first"))["result"] == {"fits": True}
        await bao.seal()
        began = len(attempts)
        refused = await lab.call("keyed_note", "vaulted", key="second")
        assert (error_slug(refused), parse_body(refused)["error"]["number"]) == ("vault-unavailable", "E3601")
        assert parse_body(refused)["execution"]["attempts"] == RETRY["max_attempts"]
        assert not await lab.has_claim(refused.call_id)
        assert error_slug(await lab.call("keyed_look", "vaulted")) == "vault-unavailable"
        assert len(attempts) == began
        assert (await lab.call("plain_look", "plain")).state is State.SUCCEEDED
        await bao.unseal()
        assert (await lab.call("keyed_note", "vaulted", key="second")).state is State.SUCCEEDED
        admin = await lab.make_admin()
        for elsewhere in (
            lab.gateway.commands.put_secret(admin, NAME, VALUE),
            lab.gateway.commands.list_secrets(admin),
        ):
            with pytest.raises(ExternalVaultInUse):
                await elsewhere


async def test_progress_quotes_no_credential(keyed_lab: GatewayLab) -> None:
    heard: list[ToolProgress] = []

    def report_progress(context: ToolContext) -> dict[str, Any]:
        assert context.credential is not None
        context.progress(1, 3, "begun")
        context.progress(2, 3, f"sent {context.credential.reveal()}")
        context.partial({"header": base64.b64encode(context.credential.reveal().encode()).decode()})
        return {}

    set_behaviour("tell", report_progress)
    outcome = await keyed_lab.call("keyed_look", "tell", report_progress=heard.append)
    assert outcome.state is State.SUCCEEDED
    assert [each.message for each in heard] == ["begun"]
