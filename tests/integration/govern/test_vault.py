"""Two vaults, one behaviour: the tenant's own secret, in time, or a problem that says why not."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from deputize.core.clock import Clock
from deputize.core.errors import CredentialExpired, CredentialMissing, Problem, VaultUnavailable
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Vault as VaultSettings
from deputize.govern.vault import local
from deputize.govern.vault.local import LocalVault
from deputize.govern.vault.openbao import THREADS, OpenBao
from deputize.govern.vault.port import Vault
from deputize.store.keys import MasterKey, TenantKeys
from deputize.store.pool import Store
from proofs.kit.bao import Bao
from proofs.kit.tcpproxy import TcpProxy

pytestmark = pytest.mark.requirement("GOV-7")
VALUE = "canary-f3a9c1d7"
Put = Callable[[str, str, str], Awaitable[None]]


@dataclass
class Kept:
    """A vault, and a way past it to put something there."""

    vault: Vault
    put: Put


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bao(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bao]:
    async with Bao(tmp_path_factory.mktemp("vault") / "bao") as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def proxy(bao: Bao) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(bao.url) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def openbao(bao: Bao, proxy: TcpProxy) -> AsyncIterator[OpenBao]:
    settings = VaultSettings(kind="openbao", address=proxy.url, token_file=bao.token_file, seconds=1.0)
    vault = OpenBao(settings, Clock())
    yield vault
    vault.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def store(module_database: str) -> AsyncIterator[Store]:
    opened = await Store.open(module_database)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(params=["local", "openbao"], loop_scope="session")
async def kept(request: pytest.FixtureRequest, store: Store, bao: Bao, openbao: OpenBao) -> Kept:
    keys = TenantKeys(MasterKey(material=bytes(32)), Clock())

    async def put_here(tenant: str, name: str, value: str) -> None:
        of_tenant = await keys.load(store, tenant)
        async with store.writing() as connection:
            await local.put(connection, of_tenant, name, value, by="test")

    async def put_there(tenant: str, name: str, value: str) -> None:
        await bao.put(tenant, name, {"value": value})

    if request.param == "local":
        return Kept(vault=LocalVault(store, keys, seconds=1.0), put=put_here)
    return Kept(vault=openbao, put=put_there)


async def test_a_secret_is_had_as_it_was_put_and_anew_each_time(kept: Kept) -> None:
    await kept.put("acme", "crm/api-key", VALUE)
    first = await kept.vault.fetch("acme", "crm/api-key", seconds=5)
    assert first.reveal() == VALUE
    first.close()
    await kept.put("acme", "crm/api-key", 'canary-rotated ✓ "quoted"\n')
    assert (await kept.vault.fetch("acme", "crm/api-key", seconds=5)).reveal() == 'canary-rotated ✓ "quoted"\n'


async def test_one_tenants_secret_is_not_anothers(kept: Kept) -> None:
    await kept.put("acme", "mail/key", VALUE)
    await kept.put("other", "own/key", "canary-of-the-other")
    for tenant, name in (("other", "mail/key"), ("acme", "own/key"), ("acme", "mail"), ("acme", "mail/key/more")):
        with pytest.raises(CredentialMissing) as refused:
            await kept.vault.fetch(tenant, name, seconds=5)
        assert refused.value.details["secret"] == name
        assert VALUE not in str(refused.value)


async def test_no_time_is_no_secret(kept: Kept) -> None:
    await kept.put("acme", "late/key", VALUE)
    with pytest.raises(VaultUnavailable):
        await kept.vault.fetch("acme", "late/key", seconds=-1)


@pytest.mark.parametrize("fields", [{"value": "short"}, {"value": 12345678}, {"value": ""}, {"password": VALUE}, {}])
async def test_what_cannot_be_a_secret_is_none(bao: Bao, openbao: OpenBao, fields: dict[str, object]) -> None:
    await bao.put("acme", "odd", fields)
    with pytest.raises(CredentialMissing) as refused:
        await openbao.fetch("acme", "odd", seconds=5)
    assert VALUE not in str(refused.value.details)


@pytest.mark.parametrize("at", ["2020-01-01T00:00:00Z", "2020-01-01", "next week"])
async def test_an_expired_secret_is_refused_and_so_is_one_whose_end_cannot_be_read(
    bao: Bao, openbao: OpenBao, at: str
) -> None:
    await bao.put("acme", "old", {"value": VALUE}, expires_at=at)
    with pytest.raises(CredentialExpired):
        await openbao.fetch("acme", "old", seconds=5)


async def test_a_secret_holds_until_it_expires(bao: Bao, openbao: OpenBao) -> None:
    await bao.put("acme", "young", {"value": VALUE}, expires_at="2999-01-01T00:00:00+02:00")
    assert (await openbao.fetch("acme", "young", seconds=5)).reveal() == VALUE


async def test_a_deleted_secret_is_missing(bao: Bao, openbao: OpenBao) -> None:
    await bao.put("acme", "gone", {"value": VALUE})
    await bao.delete("acme", "gone")
    with pytest.raises(CredentialMissing):
        await openbao.fetch("acme", "gone", seconds=5)


async def test_the_token_is_read_anew_for_each_use(bao: Bao, openbao: OpenBao) -> None:
    await bao.put("acme", "crm/api-key", {"value": VALUE})
    good = bao.token_file.read_text()
    try:
        bao.write_token("s.nonsense")
        with pytest.raises(VaultUnavailable) as refused:
            await openbao.fetch("acme", "crm/api-key", seconds=5)
        assert "refuses this gateway's token" in refused.value.message
        bao.write_token(good + "\n")
        assert (await openbao.fetch("acme", "crm/api-key", seconds=5)).reveal() == VALUE
        bao.token_file.chmod(0o644)
        with pytest.raises(VaultUnavailable):
            await openbao.fetch("acme", "crm/api-key", seconds=5)
        bao.token_file.unlink()
        with pytest.raises(VaultUnavailable):
            await openbao.fetch("acme", "crm/api-key", seconds=5)
    finally:
        bao.write_token(good)


async def test_sealed_or_killed_it_gives_nothing_and_afterwards_everything(bao: Bao, openbao: OpenBao) -> None:
    await bao.put("acme", "crm/api-key", {"value": VALUE})

    async def refused() -> str:
        with pytest.raises(VaultUnavailable) as problem:
            await openbao.fetch("acme", "crm/api-key", seconds=5)
        return problem.value.message

    await bao.seal()
    assert "sealed" in await refused()
    await bao.unseal()
    assert (await openbao.fetch("acme", "crm/api-key", seconds=5)).reveal() == VALUE
    await bao.kill()
    assert "cannot be reached" in await refused()
    await bao.restart()
    assert (await openbao.fetch("acme", "crm/api-key", seconds=5)).reveal() == VALUE


async def test_a_slow_vault_costs_its_callers_the_agreed_time_and_few_threads(
    bao: Bao, openbao: OpenBao, proxy: TcpProxy
) -> None:
    await bao.put("acme", "crm/api-key", {"value": VALUE})
    await openbao.fetch("acme", "crm/api-key", seconds=5)
    proxy.delay = 30.0
    try:
        began = time.monotonic()
        asked = [openbao.fetch("acme", "crm/api-key", seconds=seconds) for seconds in (0.2, *[5.0] * 40)]
        ended = await asyncio.gather(*asked, return_exceptions=True)
        took = time.monotonic() - began
    finally:
        proxy.delay = 0.0
    assert {type(each) for each in ended} == {VaultUnavailable}
    assert isinstance(ended[0], Problem)
    assert "0.2 s" in ended[0].message
    assert took < 2.0
    assert sum(thread.name.startswith("vault") for thread in threading.enumerate()) <= THREADS
    async with asyncio.timeout(90):
        assert (await openbao.fetch("acme", "crm/api-key", seconds=5)).reveal() == VALUE


async def test_a_redirect_is_no_answer_and_takes_the_token_nowhere(bao: Bao) -> None:
    seen: list[bytes] = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 307 Go\r\nLocation: " + bao.url.encode() + b"/v1/x\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(elsewhere, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    vault = OpenBao(VaultSettings(kind="openbao", address=address, token_file=bao.token_file), Clock())
    try:
        with pytest.raises(VaultUnavailable):
            await vault.fetch("acme", "crm/api-key", seconds=2)
    finally:
        vault.close()
        server.close()
    assert len(seen) == 1


@pytest.mark.parametrize("missing", [{"address": None}, {"token_file": None}])
def test_half_a_vault_is_said_at_the_start(missing: dict[str, None]) -> None:
    settings = VaultSettings(kind="openbao", address="http://127.0.0.1:1", token_file=Path("t"))
    with pytest.raises(Misconfigured, match=r"vault\.address and vault\.token_file"):
        OpenBao(settings.model_copy(update=missing), Clock())
