"""Both vaults behave alike: they return the tenant's own secret in time, or a problem with the reason."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.errors import CredentialExpired, CredentialMissing, Problem, VaultUnavailable
from deputize.core.settings import VaultSettings as VaultSettings
from deputize.govern.vault import local
from deputize.govern.vault.local import LocalVault
from deputize.govern.vault.openbao import THREADS, OpenBaoVault
from deputize.govern.vault.port import SecretVault
from deputize.store.keys import MasterKey, TenantKeys
from deputize.store.pool import Store
from proofs.kit.openbao import OpenBaoServer
from proofs.kit.tcp_proxy import TcpProxy

pytestmark = pytest.mark.requirement("GOV-7")
VALUE = "canary-f3a9c1d7"
Put = Callable[[str, str, str], Awaitable[None]]


@dataclass
class VaultUnderTest:
    """A vault, with a way to store values in it directly."""

    vault: SecretVault
    put: Put


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bao(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenBaoServer]:
    async with OpenBaoServer(tmp_path_factory.mktemp("vault") / "bao") as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def proxy(bao: OpenBaoServer) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(bao.url) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def openbao(bao: OpenBaoServer, proxy: TcpProxy) -> AsyncIterator[OpenBaoVault]:
    settings = VaultSettings(kind="openbao", address=proxy.url, token_file=bao.token_file, seconds=30)
    vault = OpenBaoVault(settings, Clock())
    yield vault
    vault.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def store(module_database: str) -> AsyncIterator[Store]:
    opened = await Store.open(module_database)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(params=["local", "openbao"], loop_scope="session")
async def vault_under_test(
    request: pytest.FixtureRequest, store: Store, bao: OpenBaoServer, openbao: OpenBaoVault
) -> VaultUnderTest:
    keys = TenantKeys(store, MasterKey(material=bytes(32)), Clock())

    async def put_local(tenant: str, name: str, value: str) -> None:
        of_tenant = await keys.load(tenant)
        async with store.write_transaction() as connection:
            await local.put_secret(connection, of_tenant, name, value, by="test")

    async def put_openbao(tenant: str, name: str, value: str) -> None:
        await bao.put_secret(tenant, name, {"value": value})

    if request.param == "local":
        return VaultUnderTest(vault=LocalVault(store, keys, seconds=30), put=put_local)
    return VaultUnderTest(vault=openbao, put=put_openbao)


async def test_a_secret_is_fetched_afresh_each_time(vault_under_test: VaultUnderTest) -> None:
    await vault_under_test.put("acme", "crm/api-key", VALUE)
    first = await vault_under_test.vault.fetch("acme", "crm/api-key", seconds=30)
    assert first.reveal() == VALUE
    first.close()
    await vault_under_test.put("acme", "crm/api-key", 'canary-rotated ✓ "quoted"\n')
    assert (
        await vault_under_test.vault.fetch("acme", "crm/api-key", seconds=30)
    ).reveal() == 'canary-rotated ✓ "quoted"\n'


async def test_a_tenant_cannot_read_another_tenants_secret(vault_under_test: VaultUnderTest) -> None:
    await vault_under_test.put("acme", "mail/key", VALUE)
    await vault_under_test.put("other", "own/key", "canary-of-the-other")
    for tenant, name in (("other", "mail/key"), ("acme", "own/key"), ("acme", "mail"), ("acme", "mail/key/more")):
        with pytest.raises(CredentialMissing) as refused:
            await vault_under_test.vault.fetch(tenant, name, seconds=30)
        assert refused.value.details["secret"] == name
        assert VALUE not in str(refused.value)


async def test_fetching_without_time_left_fails(vault_under_test: VaultUnderTest) -> None:
    await vault_under_test.put("acme", "late/key", VALUE)
    with pytest.raises(VaultUnavailable):
        await vault_under_test.vault.fetch("acme", "late/key", seconds=-1)


@pytest.mark.parametrize("fields", [{"value": "short"}, {"value": 12345678}, {"value": ""}, {"password": VALUE}, {}])
async def test_an_invalid_value_is_not_a_secret(
    bao: OpenBaoServer, openbao: OpenBaoVault, fields: dict[str, object]
) -> None:
    await bao.put_secret("acme", "odd", fields)
    with pytest.raises(CredentialMissing) as refused:
        await openbao.fetch("acme", "odd", seconds=30)
    assert VALUE not in str(refused.value.details)


@pytest.mark.parametrize("at", ["2020-01-01T00:00:00Z", "2020-01-01", "next week"])
async def test_an_expired_or_unreadable_expiry_is_refused(bao: OpenBaoServer, openbao: OpenBaoVault, at: str) -> None:
    await bao.put_secret("acme", "old", {"value": VALUE}, expires_at=at)
    with pytest.raises(CredentialExpired):
        await openbao.fetch("acme", "old", seconds=30)


async def test_a_secret_is_valid_until_it_expires(bao: OpenBaoServer, openbao: OpenBaoVault) -> None:
    await bao.put_secret("acme", "young", {"value": VALUE}, expires_at="2999-01-01T00:00:00+02:00")
    assert (await openbao.fetch("acme", "young", seconds=30)).reveal() == VALUE


async def test_a_deleted_secret_is_missing(bao: OpenBaoServer, openbao: OpenBaoVault) -> None:
    await bao.put_secret("acme", "gone", {"value": VALUE})
    await bao.delete_secret("acme", "gone")
    with pytest.raises(CredentialMissing):
        await openbao.fetch("acme", "gone", seconds=30)


async def test_the_vault_token_is_read_for_each_request(bao: OpenBaoServer, openbao: OpenBaoVault) -> None:
    await bao.put_secret("acme", "crm/api-key", {"value": VALUE})
    good = bao.token_file.read_text()
    try:
        bao.write_token("s.nonsense")
        with pytest.raises(VaultUnavailable) as refused:
            await openbao.fetch("acme", "crm/api-key", seconds=30)
        assert "does not let this gateway's token read" in refused.value.message
        bao.write_token(good + "\n")
        assert (await openbao.fetch("acme", "crm/api-key", seconds=30)).reveal() == VALUE
        bao.token_file.chmod(0o644)
        with pytest.raises(VaultUnavailable):
            await openbao.fetch("acme", "crm/api-key", seconds=30)
        bao.token_file.unlink()
        with pytest.raises(VaultUnavailable):
            await openbao.fetch("acme", "crm/api-key", seconds=30)
    finally:
        bao.write_token(good)


async def test_a_sealed_or_stopped_vault_recovers(bao: OpenBaoServer, openbao: OpenBaoVault) -> None:
    await bao.put_secret("acme", "crm/api-key", {"value": VALUE})

    async def fetch_refusal() -> str:
        with pytest.raises(VaultUnavailable) as problem:
            await openbao.fetch("acme", "crm/api-key", seconds=30)
        return problem.value.message

    await bao.seal()
    assert "sealed" in await fetch_refusal()
    await bao.unseal()
    assert (await openbao.fetch("acme", "crm/api-key", seconds=30)).reveal() == VALUE
    await bao.kill()
    assert "cannot be reached" in await fetch_refusal()
    await bao.restart()
    assert (await openbao.fetch("acme", "crm/api-key", seconds=30)).reveal() == VALUE


async def test_a_slow_vault_delays_only_its_callers_up_to_the_timeout(
    bao: OpenBaoServer, openbao: OpenBaoVault, proxy: TcpProxy
) -> None:
    await bao.put_secret("acme", "crm/api-key", {"value": VALUE})
    await openbao.fetch("acme", "crm/api-key", seconds=30)
    hasty = OpenBaoVault(
        VaultSettings(kind="openbao", address=proxy.url, token_file=bao.token_file, seconds=1.0), Clock()
    )
    proxy.delay = 60.0
    try:
        began = time.monotonic()
        asked = [hasty.fetch("acme", "crm/api-key", seconds=seconds) for seconds in (0.2, *[5.0] * 40)]
        ended = await asyncio.gather(*asked, return_exceptions=True)
        took = time.monotonic() - began
    finally:
        proxy.delay = 0.0
    assert {type(each) for each in ended} == {VaultUnavailable}
    assert isinstance(ended[0], Problem)
    assert "0.2 s" in ended[0].message
    assert took < 25
    # The vault of the fixture has read once, in a thread of its own.
    assert sum(thread.name.startswith("vault") for thread in threading.enumerate()) <= THREADS + 1
    async with asyncio.timeout(90):
        while True:
            try:
                assert (await hasty.fetch("acme", "crm/api-key", seconds=5)).reveal() == VALUE
                break
            except VaultUnavailable:
                await asyncio.sleep(0.05)
    hasty.close()


async def test_a_redirect_is_refused_and_does_not_leak_the_token(bao: OpenBaoServer) -> None:
    seen: list[bytes] = []

    async def record_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 307 Go\r\nLocation: " + bao.url.encode() + b"/v1/x\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(record_request, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    vault = OpenBaoVault(VaultSettings(kind="openbao", address=address, token_file=bao.token_file, seconds=30), Clock())
    try:
        with pytest.raises(VaultUnavailable):
            await vault.fetch("acme", "crm/api-key", seconds=30)
    finally:
        vault.close()
        server.close()
    assert len(seen) == 1


async def test_an_answer_that_is_nested_too_deeply_counts_as_none(tmp_path: Path) -> None:
    body, token = b"[" * 100_000, tmp_path / "token"
    token.write_text("t")
    token.chmod(0o600)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    vault = OpenBaoVault(VaultSettings(kind="openbao", address=address, token_file=token, seconds=30), Clock())
    try:
        with pytest.raises(VaultUnavailable, match="invalid response"):
            await vault.fetch("acme", "crm/api-key", seconds=30)
    finally:
        vault.close()
        server.close()


@pytest.mark.parametrize("missing", [{"address": None}, {"token_file": None}])
def test_incomplete_vault_settings_are_reported_at_startup(missing: dict[str, None]) -> None:
    settings = VaultSettings(kind="openbao", address="http://127.0.0.1:1", token_file=Path("t"))
    with pytest.raises(ConfigError, match=r"vault\.address and vault\.token_file"):
        OpenBaoVault(settings.model_copy(update=missing), Clock())
