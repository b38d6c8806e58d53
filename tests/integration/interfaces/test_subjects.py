"""Two issuers of one tenant may both have an `ann`: two people in calls, keys, grants, revocations and the audit."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

import asyncpg
import jwt
import orjson
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.clock import Clock
from deputize.core.settings import IssuerSettings, Settings
from deputize.govern.identity.dev_issuer import ISSUER as DEV_ISSUER
from tests.integration.conftest import ADMIN, SCOPES, HttpGateway, serve_gateway

pytestmark = pytest.mark.requirement("GOV-1", "INV-5")

SECOND, LINKED = "https://second.example", "https://linked.example"


class TwoIssuers:
    def __init__(self, gateway: HttpGateway, key: Ed25519PrivateKey) -> None:
        self.gateway = gateway
        self._key = key

    def first_token(self, user: str, **more: Any) -> str:
        return self.gateway.token(user, **more)

    def second_token(self, user: str, *, issuer: str = SECOND, scopes: Iterable[str] = SCOPES, **claims: Any) -> str:
        now = Clock().epoch_ms() // 1000
        claims = {
            "iss": issuer,
            "aud": "deputize",
            "sub": user,
            "iat": now,
            "exp": now + 600,
            "scope": " ".join(scopes),
            "org": "dev",
            **claims,
        }
        return jwt.encode(claims, self._key, algorithm="EdDSA", headers={"kid": "second"})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def issuers(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TwoIssuers]:
    folder, key = tmp_path_factory.mktemp("two-issuers"), Ed25519PrivateKey.generate()
    jwk = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    jwk.pop("key_ops", None)
    keys_file = folder / "second.jwks.json"
    keys_file.write_bytes(orjson.dumps({"keys": [{**jwk, "kid": "second", "use": "sig"}]}))

    def change(settings: Settings) -> Settings:
        # The tenant is a claim, because an issuer of just one tenant would be its primary one.
        second = IssuerSettings(
            issuer=SECOND, audience="deputize", jwks_file=keys_file, tenant_claim="org", tenants=("d*",)
        )
        linked = second.model_copy(update={"issuer": LINKED, "same_subjects_as": DEV_ISSUER})
        identity = settings.identity.model_copy(update={"issuers": (*settings.identity.issuers, second, linked)})
        return settings.model_copy(update={"identity": identity})

    async with serve_gateway(module_database, folder, change=change) as gateway:
        yield TwoIssuers(gateway, key)


async def _call(issuers: TwoIssuers, token: str, key: str, name: str = "Ann") -> dict[str, Any]:
    answer = await issuers.gateway.call("shop.rename_user", {"id": 1, "name": name}, token=token, key=key)
    told: dict[str, Any] = answer.json()
    return told


async def test_equal_keys_of_two_people_are_two_calls_that_neither_sees_of_the_other(issuers: TwoIssuers) -> None:
    first, second = issuers.first_token("ann"), issuers.second_token("ann")
    mine, theirs = await _call(issuers, first, "same"), await _call(issuers, second, "same", "Another")
    assert mine["call_id"] != theirs["call_id"]
    assert (await _call(issuers, second, "same", "Another"))["call_id"] == theirs["call_id"]
    for token, own, other in ((first, mine, theirs), (second, theirs, mine)):
        assert (await issuers.gateway.get(f"/v1/calls/{own['call_id']}", token=token)).status_code == 200
        assert (await issuers.gateway.get(f"/v1/calls/{other['call_id']}", token=token)).status_code == 404
        listed = (await issuers.gateway.get("/v1/calls", token=token)).json()["calls"]
        assert [each["call_id"] for each in listed] == [own["call_id"]]
    assert (await _call(issuers, issuers.second_token("ann", issuer=LINKED), "same"))["call_id"] == mine["call_id"]


async def test_the_subject_survives_a_token_exchange(issuers: TwoIssuers) -> None:
    first, second = issuers.first_token("eve"), issuers.second_token("eve")
    exchanged = [await issuers.gateway.exchange_token(token, agent="bot") for token in (first, second)]
    again = await issuers.gateway.exchange_token(exchanged[1], agent="helper")
    claims = [jwt.decode(token, options={"verify_signature": False}) for token in (*exchanged, again)]
    assert [(each["sub"], each["origin"]) for each in claims[1:]] == [("eve", SECOND)] * 2
    calls = [await _call(issuers, token, "exchanged", f"E{n}") for n, token in enumerate((*exchanged, again))]
    assert len({each["call_id"] for each in calls}) == 3
    for token, visible in ((first, [True, False, False]), (second, [False, True, True])):
        seen = [await issuers.gateway.get(f"/v1/calls/{each['call_id']}", token=token) for each in calls]
        assert [each.status_code == 200 for each in seen] == visible
    grants = (await issuers.gateway.get("/v1/grants", token=second)).json()["grants"]
    assert {each["user"] for each in grants} == {f"issuer={SECOND} eve"}


async def test_a_name_that_looks_like_anothers_is_not_theirs(issuers: TwoIssuers) -> None:
    victim = issuers.second_token("vic")
    call = await _call(issuers, victim, "mine")
    for name in (f"issuer={SECOND} vic", f"ISSUER={SECOND} vic"):
        thief = issuers.first_token(name)
        assert (await issuers.gateway.get(f"/v1/calls/{call['call_id']}", token=thief)).status_code == 404
    impostor = issuers.second_token(f"issuer={SECOND} vic")
    assert (await issuers.gateway.get(f"/v1/calls/{call['call_id']}", token=impostor)).status_code == 404


async def test_revoking_a_name_ends_it_in_every_issuer_unless_one_is_named(issuers: TwoIssuers) -> None:
    first, second = issuers.first_token("leo"), issuers.second_token("leo")
    admin = issuers.first_token("root", scopes=(ADMIN,))

    async def revoke(**body: str) -> dict[str, Any]:
        answer = await issuers.gateway.post("/v1/revocations", {"kind": "user", **body}, token=admin)
        assert answer.status_code == 201, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def check(token: str) -> int:
        return int((await issuers.gateway.get("/v1/tools", token=token)).status_code)

    one = await revoke(value="leo", issuer=SECOND)
    assert (one["value"], one["issuers"]) == (f"issuer={SECOND} leo", [SECOND])
    assert (await check(first), await check(second)) == (200, 401)
    mia = issuers.first_token("mia"), issuers.second_token("mia")
    both = await revoke(value="mia")
    assert both["issuers"] == [DEV_ISSUER, SECOND]
    assert [await check(each) for each in mia] == [401, 401]
    kim = issuers.first_token("kim"), issuers.second_token("kim")
    await revoke(value="kim", issuer=DEV_ISSUER)
    assert [await check(each) for each in kim] == [401, 200]
    refused = await issuers.gateway.post(
        "/v1/revocations", {"kind": "token", "value": "x", "issuer": SECOND}, token=admin
    )
    assert refused.status_code == 400


async def test_people_and_agents_of_one_name_have_different_pseudonyms(issuers: TwoIssuers) -> None:
    first, second = issuers.first_token("pat"), issuers.second_token("pat")
    agent = await issuers.gateway.exchange_token(issuers.first_token("zoe"), agent="pat")
    calls = [await _call(issuers, token, "audit") for token in (first, second, agent)]
    database = issuers.gateway.settings.database.url
    assert database is not None
    connection = await asyncpg.connect(database.get_secret_value())
    try:
        names = [
            orjson.loads(
                await connection.fetchval(
                    "select entry from deputize.audit_entries where call_id = $1 limit 1", each["call_id"]
                )
            )["caller"]
            for each in calls
        ]
    finally:
        await connection.close()
    assert len({names[0][0], names[1][0], names[2][0], names[2][1]}) == 4
