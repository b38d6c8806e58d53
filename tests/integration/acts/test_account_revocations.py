"""Unlinking revokes the tokens at a real authorization server, and the link is gone whatever comes of that."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import orjson
import pytest
import pytest_asyncio

from deputize.acts.account_revocations import delete_link, revoke_due_tokens, store_replaced_tokens
from deputize.core.settings import McpServerSettings
from deputize.lifecycle.credentials.sealed_tokens import open_link
from deputize.lifecycle.runtime import Runtime
from deputize.operations.background import account_revocations
from tests.integration.conftest import ADMIN
from tests.support.console_gateway import open_console_gateway
from tests.support.gateway_internals import get_runtime
from tests.support.linking_gateway import PAGE, READ, LinkingGateway, parse_form, parse_refusal
from tests.support.mcp_servers.protected_server import ProtectedServer, run_protected_server

pytestmark = pytest.mark.requirement("REG-2", "GOV-5")
_BOTH = [("refresh_token", "ana@orders"), ("access_token", "ana@orders")]


@pytest.fixture(scope="module")
def protected_server() -> Iterator[ProtectedServer]:
    with run_protected_server() as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def module_gateway(
    module_database: str, tmp_path_factory: pytest.TempPathFactory, protected_server: ProtectedServer
) -> AsyncIterator[LinkingGateway]:
    settings = {"url": protected_server.url, "credential": "link", "reads": ("get_*",), "probe_seconds": 3600}
    moved = {"issuer": "https://other.example", "client_id": "ours", "secret": "not-in-the-vault"}
    servers = [
        McpServerSettings.model_validate({"name": name, "tenant": tenant, **settings, **more})
        for name, tenant, more in (("orders", "dev", {}), ("orders", "other", {}), ("moved", "dev", moved))
    ]
    # The tests say when revocations are attempted.
    with patch.object(account_revocations, "_INTERVAL_SECONDS", 3600.0):
        async with open_console_gateway(module_database, tmp_path_factory.mktemp("links"), servers=servers) as console:
            opened = LinkingGateway(console=console, server=protected_server)
            await opened.link_account("lea", "lea@orders")
            await opened.probe()
            yield opened


@pytest.fixture
def gateway(module_gateway: LinkingGateway) -> LinkingGateway:
    server = module_gateway.server
    server.offers_revocation, server.revocation_failure, server.is_down = True, None, False
    server.revocations.clear()
    return module_gateway


def _get_runtime(gateway: LinkingGateway) -> Runtime:
    in_process = gateway.console.gateway.in_process
    assert in_process is not None
    return get_runtime(in_process)


async def _list_commands(gateway: LinkingGateway) -> list[str]:
    """List what was recorded about revocations, oldest first."""
    rows = await gateway.fetch_rows("select entry from deputize.audit_entries where tenant = 'dev' order by id")
    entries: list[dict[str, Any]] = [orjson.loads(row["entry"]) for row in rows]
    revocations = [each for each in entries if str(each.get("command")).startswith("revoke_link_tokens")]
    assert all(each["caller"] == [] for each in revocations)
    return [each["command"] for each in revocations]


async def _make_due(gateway: LinkingGateway) -> int:
    await gateway.fetch_rows("update deputize.server_revocations set due_at = now()")
    return await revoke_due_tokens(_get_runtime(gateway))


async def _delete_link_only(gateway: LinkingGateway) -> None:
    """Commit what unlinking commits, and then nothing more, as if the process were gone."""
    runtime = _get_runtime(gateway)
    keys = await runtime.linked_accounts.load_keys("dev")
    async with runtime.store.write_transaction() as connection:
        assert (await delete_link(runtime, connection, keys, "orders", "ana"))[0] is True


async def test_unlinking_revokes_the_refresh_token_and_then_the_access_token(gateway: LinkingGateway) -> None:
    await gateway.link_account("ana", "ana@orders")
    text = await gateway.unlink_account("ana")
    assert "was revoked at its authorization server" in text
    assert gateway.server.revocations == _BOTH
    assert not any(grant.valid for grant, _ in gateway.server.access.values() if grant.account == "ana@orders")
    # No other person's, and nothing is left to do.
    assert (await gateway.call_tool(READ, "lea")).status_code == 200
    assert await gateway.fetch_rows("select 1 from deputize.server_revocations") == []
    assert (await _list_commands(gateway))[-1] == "revoke_link_tokens:revoked"


async def test_a_server_that_revokes_nothing_is_named_to_the_person(gateway: LinkingGateway) -> None:
    await gateway.link_account("ana", "ana@orders")
    gateway.server.offers_revocation = False
    assert "remove the access there too" in await gateway.unlink_account("ana")
    assert gateway.server.revocations == []
    parse_refusal(await gateway.call_tool(READ, "ana"))
    assert await gateway.fetch_rows("select 1 from deputize.server_revocations") == []
    assert (await _list_commands(gateway))[-1] == "revoke_link_tokens:not_offered"


async def test_a_revocation_that_fails_is_repeated_until_it_succeeds(gateway: LinkingGateway) -> None:
    await gateway.link_account("ana", "ana@orders")
    before = await _list_commands(gateway)
    gateway.server.is_down = True
    assert "tried again in the background" in await gateway.unlink_account("ana")
    # The link is gone all the same, and what is left names no person.
    parse_refusal(await gateway.call_tool(READ, "ana"))
    rows = await gateway.fetch_rows("select r::text as said, * from deputize.server_revocations r")
    assert [row["attempts"] for row in rows] == [1]
    assert "ana" not in rows[0]["said"]
    # It is not due yet, and fails once more when it is.
    assert await revoke_due_tokens(_get_runtime(gateway)) == 0
    assert await _make_due(gateway) == 1
    assert await _list_commands(gateway) == before
    gateway.server.is_down = False
    assert await _make_due(gateway) == 1
    assert gateway.server.revocations == _BOTH
    assert await _list_commands(gateway) == [*before, "revoke_link_tokens:revoked"]
    assert await _make_due(gateway) == 0


async def test_a_refused_revocation_is_given_up_and_recorded(gateway: LinkingGateway) -> None:
    await gateway.link_account("ana", "ana@orders")
    gateway.server.revocation_failure = (400, "unsupported_token_type")
    assert "did not revoke the access" in await gateway.unlink_account("ana")
    parse_refusal(await gateway.call_tool(READ, "ana"))
    assert await gateway.fetch_rows("select 1 from deputize.server_revocations") == []
    assert (await _list_commands(gateway))[-1] == "revoke_link_tokens:given_up"


async def test_a_revocation_that_keeps_failing_is_given_up_in_the_end(gateway: LinkingGateway) -> None:
    await gateway.link_account("ana", "ana@orders")
    gateway.server.is_down = True
    await gateway.unlink_account("ana")
    await gateway.fetch_rows("update deputize.server_revocations set attempts = 11")
    assert await _make_due(gateway) == 1
    assert await gateway.fetch_rows("select 1 from deputize.server_revocations") == []
    assert (await _list_commands(gateway))[-1] == "revoke_link_tokens:given_up"


async def test_a_process_that_dies_after_the_commit_leaves_the_revocation_to_others(gateway: LinkingGateway) -> None:
    await gateway.link_account("ana", "ana@orders")
    await _delete_link_only(gateway)
    parse_refusal(await gateway.call_tool(READ, "ana"))
    assert gateway.server.revocations == []
    assert await revoke_due_tokens(_get_runtime(gateway)) == 1
    assert gateway.server.revocations == _BOTH


async def test_the_secret_of_a_client_is_shown_to_no_other_issuer(gateway: LinkingGateway) -> None:
    """Its settings name another issuer since: the vault, which lacks their secret, is not asked for it."""
    await gateway.link_account("ana", "ana@orders")
    await _delete_link_only(gateway)
    await gateway.fetch_rows("update deputize.server_revocations set server = 'moved'")
    assert await revoke_due_tokens(_get_runtime(gateway)) == 1
    assert gateway.server.revocations == _BOTH
    assert await gateway.fetch_rows("select 1 from deputize.server_revocations") == []


async def test_erasing_a_person_unlinks_their_accounts_and_revokes_the_tokens(gateway: LinkingGateway) -> None:
    await gateway.link_account("ana", "ana@orders")
    http = gateway.console.gateway
    answer = await http.post("/v1/erasures", {"user": "ana"}, token=http.token("root", scopes=[ADMIN]))
    assert (answer.status_code, answer.json()["unlinked_servers"]) == (202, ["orders"]), answer.text
    parse_refusal(await gateway.call_tool(READ, "ana"))
    assert await revoke_due_tokens(_get_runtime(gateway)) == 1
    assert gateway.server.revocations == _BOTH
    assert (await gateway.call_tool(READ, "lea")).status_code == 200


async def test_unlinking_reaches_only_ones_own_account(gateway: LinkingGateway) -> None:
    for person in ("olaf", "bo"):
        async with gateway.console.open_browser(person) as browser:
            answer = await browser.post(f"{PAGE}/orders/unlink", parse_form(await browser.get(PAGE)))
        assert answer.status_code == 404, person
    assert gateway.server.revocations == []
    assert (await gateway.call_tool(READ, "lea")).status_code == 200


async def test_linking_again_revokes_the_replaced_tokens_and_not_the_new_ones(gateway: LinkingGateway) -> None:
    await gateway.link_account("ana", "ana@orders")
    await gateway.link_account("ana", "ana@orders")
    # Committed with the new link, so that a process that dies now leaves it to another.
    (row,) = await gateway.fetch_rows("select r::text as said, * from deputize.server_revocations r")
    assert "ana" not in row["said"]
    assert await revoke_due_tokens(_get_runtime(gateway)) == 1
    assert gateway.server.revocations == _BOTH
    grants = {id(grant): grant.valid for grant, _ in gateway.server.access.values() if grant.account == "ana@orders"}
    assert list(grants.values())[-2:] == [False, True]
    assert (await gateway.call_tool(READ, "ana")).status_code == 200
    assert (await _list_commands(gateway))[-1] == "revoke_link_tokens:revoked"
    await gateway.unlink_account("ana")


async def test_a_token_that_was_issued_once_more_is_not_revoked(gateway: LinkingGateway) -> None:
    await gateway.link_account("ana", "ana@orders")
    runtime = _get_runtime(gateway)
    keys = await runtime.linked_accounts.load_keys("dev")
    (row,) = await gateway.fetch_rows("select sealed from deputize.server_links where user_name = 'ana'")
    tokens = open_link(keys, "orders", "ana", row["sealed"])
    for new_tokens, expected in ((tokens, []), (replace(tokens, access="new"), [("access_token", "ana@orders")])):
        async with runtime.store.write_transaction() as connection:
            await store_replaced_tokens(runtime, connection, keys, "orders", "ana", new_tokens)
        await revoke_due_tokens(runtime)
        assert gateway.server.revocations == expected
    await gateway.unlink_account("ana")
