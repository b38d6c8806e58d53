"""Operator clients over real HTTP: a pipeline that signs an assertion changes authority, and nothing else does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import jwt
import orjson
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.clock import Clock
from deputize.core.settings import OperatorClientSettings, Settings
from tests.integration.conftest import ACCESS_TOKEN, ADMIN, PUBLIC_URL, HttpGateway, serve_gateway
from tests.integration.interfaces.rest.test_openapi import OpenApiChecker

pytestmark = pytest.mark.requirement("GOV-2")

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
POLICIES = {"files": [{"path": "open.cedar", "text": '@id("by-ci") permit (principal, action, resource);'}]}


@dataclass
class Pipeline:
    """A gateway, and a program that is registered there as the operator client `ci` of tenant `dev`."""

    gateway: HttpGateway
    key: Ed25519PrivateKey
    dsn: str

    def sign_assertion(
        self, *, key: Any = None, algorithm: str = "EdDSA", headers: dict[str, str] | None = None, **claims: Any
    ) -> str:
        now = Clock().epoch_ms() // 1000
        told = {
            "iss": "ci", "sub": "ci", "aud": f"{PUBLIC_URL}/t/dev", "jti": Clock().new_id(), "iat": now,
            "exp": now + 60, **claims,
        }  # fmt: skip
        kept = {name: value for name, value in told.items() if value is not None}
        return jwt.encode(
            kept, self.key if key is None else key, algorithm=algorithm, headers={"kid": "ci", **(headers or {})}
        )

    async def request_token(self, assertion: str | None = None, **fields: str) -> httpx2.Response:
        form = {
            "grant_type": "client_credentials",
            "client_assertion_type": ASSERTION_TYPE,
            "client_assertion": self.sign_assertion() if assertion is None else assertion,
            **fields,
        }
        return await self.gateway.http.post("/oauth/token", data=form)

    async def get_token(self, **fields: str) -> str:
        answer = await self.request_token(**fields)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["access_token"])

    async def put_policies(self, token: str) -> httpx2.Response:
        headers = {"authorization": f"Bearer {token}"}
        return await self.gateway.http.put("/v1/policies", json=POLICIES, headers=headers)

    async def fetch(self, statement: str, *values: Any) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.dsn)
        try:
            return list(await connection.fetch(statement, *values))
        finally:
            await connection.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pipeline(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pipeline]:
    folder, key = tmp_path_factory.mktemp("pipeline"), Ed25519PrivateKey.generate()
    client = OperatorClientSettings(
        client_id="ci", jwks_file=_write_jwks(folder, key), tenants=("dev",), scopes=(ADMIN, "shop:write")
    )

    def change(settings: Settings) -> Settings:
        # Every request of these tests comes from one address, and most are refused.
        limits = settings.limits.model_copy(update={"failed_exchanges_per_minute": 10_000})
        identity = settings.identity.model_copy(update={"operators": (client,)})
        return settings.model_copy(update={"identity": identity, "limits": limits})

    async with serve_gateway(module_database, folder, change=change) as gateway:
        yield Pipeline(gateway=gateway, key=key, dsn=module_database)


def _write_jwks(folder: Path, key: Ed25519PrivateKey) -> Path:
    jwk = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    jwk.pop("key_ops", None)
    path = folder / "ci.jwks.json"
    path.write_bytes(orjson.dumps({"keys": [{**jwk, "kid": "ci", "use": "sig"}]}))
    return path


async def test_a_pipeline_changes_authority_with_its_own_key(pipeline: Pipeline) -> None:
    answer = await pipeline.request_token(client_id="ci")
    body = answer.json()
    assert (answer.status_code, body["token_type"], body["scope"]) == (200, "Bearer", f"{ADMIN} shop:write")
    assert (0 < body["expires_in"] <= 300, answer.headers["cache-control"]) == (True, "no-store")
    put = await pipeline.put_policies(body["access_token"])
    assert put.status_code == 200, put.text
    rows = await pipeline.fetch("select entry from deputize.audit_entries where call_id is null order by id")
    entries = {
        entry["command"]: entry for entry in map(orjson.loads, (row["entry"] for row in rows)) if "command" in entry
    }
    assert entries["operator-token"]["outcome"] == "succeeded"
    assert [each for each in entries.values() if each.get("confirmation") == "operator-client"]


@pytest.mark.parametrize(
    ("claims", "slug"),
    [
        ({"aud": f"{PUBLIC_URL}/oauth/token"}, "token-audience"),
        ({"aud": "https://elsewhere.example/t/dev"}, "token-audience"),
        ({"aud": [f"{PUBLIC_URL}/t/dev", f"{PUBLIC_URL}/t/other"]}, "token-audience"),
        ({"aud": None}, "token-audience"),
        ({"aud": f"{PUBLIC_URL}/t/other"}, "token-issuer"),
        ({"exp": 1}, "token-expired"),
        ({"exp": None}, "token-malformed"),
        ({"exp": 2**40}, "token-malformed"),
        ({"iat": 2**40, "exp": 2**40}, "token-malformed"),
        ({"jti": None}, "token-malformed"),
        ({"jti": ""}, "token-malformed"),
        ({"sub": "root"}, "token-malformed"),
        ({"act": {"sub": "bot"}}, "token-malformed"),
        ({"iss": "other-ci", "sub": "other-ci"}, "token-issuer"),
        ({"iss": None}, "token-issuer"),
    ],
)  # fmt: skip
async def test_an_assertion_that_is_not_exactly_right_is_refused(
    pipeline: Pipeline, claims: dict[str, Any], slug: str
) -> None:
    answer = await pipeline.request_token(pipeline.sign_assertion(**claims))
    assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client"), answer.text
    assert answer.json()["problem"]["error"]["slug"] == slug


async def test_a_signature_of_no_registered_key_is_refused(pipeline: Pipeline) -> None:
    public = pipeline.key.public_key().public_bytes_raw()
    header, claims, _ = pipeline.sign_assertion().split(".")
    for assertion in (
        pipeline.sign_assertion(key=Ed25519PrivateKey.generate()),
        pipeline.sign_assertion(key=Ed25519PrivateKey.generate(), headers={"kid": "unregistered"}),
        pipeline.sign_assertion(key=public, algorithm="HS256"),
        pipeline.sign_assertion(key="", algorithm="none"),
        f"{header}.{claims}.",
    ):
        answer = await pipeline.request_token(assertion)
        assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client"), answer.text
        assert answer.json()["problem"]["error"]["slug"] == "token-signature"


async def test_only_an_assertion_authenticates(pipeline: Pipeline) -> None:
    own = await pipeline.get_token()
    for fields in (
        {"client_assertion": own},
        {"client_assertion": pipeline.sign_assertion(headers={"typ": "at+jwt"})},
        {"client_id": "other-ci"},
    ):
        answer = await pipeline.request_token(**fields)
        assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client"), answer.text
    for fields in (
        {"client_assertion": ""},
        {"client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:saml2-bearer"},
        {"subject_token": own, "subject_token_type": ACCESS_TOKEN},
    ):
        answer = await pipeline.request_token(**fields)
        assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request"), answer.text


async def test_an_assertion_is_used_once_however_many_gateways_get_it(pipeline: Pipeline) -> None:
    assertion = pipeline.sign_assertion()
    answers = await asyncio.gather(*(pipeline.request_token(assertion) for _ in range(5)))
    assert sorted(each.status_code for each in answers) == [200, 400, 400, 400, 400]
    again = await pipeline.request_token(assertion)
    assert again.json()["problem"]["error"]["details"] == {"rule": "assertion-used"}
    (winner,) = (each.json()["access_token"] for each in answers if each.status_code == 200)
    token_id = jwt.decode(winner, options={"verify_signature": False})["jti"]
    # What a gateway that was just started would find, too.
    (row,) = await pipeline.fetch("select tenant, agents, scopes from deputize.grants where id = $1", token_id)
    assert (row["tenant"], row["agents"], row["scopes"]) == ("dev", [], [ADMIN, "shop:write"])
    root = pipeline.gateway.token("root", scopes=[ADMIN])
    listed = (await pipeline.gateway.get("/v1/grants", token=root)).json()["grants"]
    assert token_id not in [each["grant_id"] for each in listed], "it delegates nothing"


async def test_a_client_gets_no_more_than_its_scopes(pipeline: Pipeline) -> None:
    wide = await pipeline.request_token(scope=f"{ADMIN} shop:delete")
    assert (wide.status_code, wide.json()["error"]) == (400, "invalid_scope")
    without = await pipeline.get_token(scope="shop:write")
    assert (await pipeline.put_policies(without)).json()["error"]["slug"] == "scope-missing"


async def test_a_clients_token_is_lent_to_no_one_and_ends_when_revoked(pipeline: Pipeline) -> None:
    gateway, token = pipeline.gateway, await pipeline.get_token()
    lent = await gateway.post_exchange(token, agent="bot")
    assert (lent.status_code, "cannot delegate" in lent.text) == (400, True)
    person = gateway.token("ana")
    acting = await gateway.post_exchange(person, agent="", actor_token=token, actor_token_type=ACCESS_TOKEN)
    assert acting.status_code == 400, acting.text
    token_id = jwt.decode(token, options={"verify_signature": False})["jti"]
    root = gateway.token("root", scopes=[ADMIN])
    revoked = await gateway.post("/v1/revocations", {"kind": "token", "value": token_id}, token=root)
    assert revoked.status_code in (200, 201), revoked.text
    assert (await pipeline.put_policies(token)).status_code == 401


async def test_clients_are_answered_as_documented(pipeline: Pipeline) -> None:
    document = (await pipeline.gateway.http.get("/openapi.json")).json()
    checker = OpenApiChecker(pipeline.gateway, document)
    for assertion, status in ((pipeline.sign_assertion(), 200), (pipeline.sign_assertion(jti=None), 401)):
        answer = await pipeline.request_token(assertion)
        assert answer.status_code == status
        checker.check_response("post", "/oauth/token", answer)


async def test_the_issuer_says_how_clients_authenticate(pipeline: Pipeline) -> None:
    described = (await pipeline.gateway.http.get("/t/dev/.well-known/oauth-authorization-server")).json()
    assert "client_credentials" in described["grant_types_supported"]
    assert "private_key_jwt" in described["token_endpoint_auth_methods_supported"]
