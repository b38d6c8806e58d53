"""A new signing key signs, and the old one verifies until every token it signed has expired."""

from collections.abc import AsyncIterator

import pytest

from deputize.core.clock import Clock
from deputize.core.errors import TokenSignatureInvalid
from deputize.govern.identity.signing_keys import SigningKeys, list_signing_keys, rotate_signing_key
from deputize.store.keys import KEY_BYTES, MasterKey, TenantKeys
from deputize.store.pool import Store

pytestmark = pytest.mark.requirement("GOV-1")
MASTER = MasterKey(material=b"\x05" * KEY_BYTES)
KEEP_SECONDS = 3600


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    opened = await Store.open(fresh_database, read_connections=2)
    yield opened
    await opened.close()


def _make_signing_keys(store: Store) -> SigningKeys:
    keys = TenantKeys(store, MASTER, Clock())
    return SigningKeys(store, keys, Clock(), public_url="https://gate.example", keep_seconds=KEEP_SECONDS)


async def _rotate(store: Store) -> str:
    keys = await TenantKeys(store, MASTER, Clock()).load("acme")
    async with store.write_transaction() as connection:
        return await rotate_signing_key(connection, keys, Clock())


async def _age(store: Store, seconds: int) -> None:
    async with store.writers.acquire() as connection:
        await connection.execute("reset role")
        await connection.execute(
            "update deputize.signing_keys set retired_at = retired_at - make_interval(secs => $1)", float(seconds)
        )


async def test_the_new_key_signs_and_the_old_one_verifies_until_its_tokens_have_expired(store: Store) -> None:
    old_kid = (await _make_signing_keys(store).load_current_key("acme")).kid
    new_kid = await _rotate(store)

    gateway = _make_signing_keys(store)
    assert (await gateway.load_current_key("acme")).kid == new_kid != old_kid
    await gateway.load_public_key("acme", old_kid)
    assert {each["kid"] for each in (await gateway.load_jwks("acme"))["keys"]} == {old_kid, new_kid}

    # A gateway may sign with the old key for a few minutes more, and such a token lasts as long as any.
    await _age(store, KEEP_SECONDS + 300)
    await _make_signing_keys(store).load_public_key("acme", old_kid)
    await _age(store, 121)
    with pytest.raises(TokenSignatureInvalid):
        await _make_signing_keys(store).load_public_key("acme", old_kid)
    await _make_signing_keys(store).load_public_key("acme", new_kid)


async def test_a_gateway_that_knows_only_the_old_key_accepts_tokens_of_the_new_one(store: Store) -> None:
    moment = [1000.0]
    keys = TenantKeys(store, MASTER, Clock())
    clock = Clock(monotonic=lambda: moment[0])
    gateway = SigningKeys(store, keys, clock, public_url="https://gate.example", keep_seconds=KEEP_SECONDS)
    old_kid = (await gateway.load_current_key("acme")).kid
    new_kid = await _rotate(store)
    moment[0] += 2
    await gateway.load_public_key("acme", new_kid)
    async with store.write_transaction() as connection:
        states = {each["kid"]: each["state"] for each in await list_signing_keys(connection, KEEP_SECONDS)}
    assert states == {old_kid: "verifies", new_kid: "signs"}
