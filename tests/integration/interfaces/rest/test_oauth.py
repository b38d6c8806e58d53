"""Authority lent over real HTTP: what an exchange gives, what it never gives, and how it is taken back."""

import base64
from typing import Any

import httpx2
import jwt
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.clock import Clock
from tests.integration.conftest import ACCESS_TOKEN, ADMIN, PUBLIC_URL, SCOPES, HttpGateway
from tests.unit.govern.identity.test_dids import encode_base58

pytestmark = pytest.mark.requirement("GOV-1", "NEW-7")

UNKNOWN_ID = "01890000-0000-7000-8000-000000000000"
READ_ONE = '[{"tool_id": "shop.get_user", "version_range": "^1"}]'


def _decode_claims(token: str) -> dict[str, Any]:
    return dict(jwt.decode(token, options={"verify_signature": False}))


def _error_slug(answer: httpx2.Response) -> str:
    body = answer.json()
    return str(body.get("problem", body)["error"]["slug"])


async def test_a_users_token_becomes_an_agents_that_can_do_less(gateway: HttpGateway) -> None:
    answer = await gateway.post_exchange(
        gateway.token("ana"), scope="shop:write", tools=READ_ONE, task="reports", lifetime="60"
    )
    body = answer.json()
    assert answer.status_code == 200, body
    assert (body["token_type"], body["scope"], body["expires_in"]) == ("Bearer", "shop:write", 60)
    assert body["issued_token_type"] == ACCESS_TOKEN
    assert answer.headers["cache-control"] == "no-store"
    claims = _decode_claims(body["access_token"])
    assert (claims["iss"], claims["aud"], claims["sub"]) == (f"{PUBLIC_URL}/t/dev", PUBLIC_URL, "ana")
    assert (claims["act"], claims["grants"], claims["task"]) == ({"sub": "bot"}, [body["grant_id"]], "reports")
    allowed = await gateway.call("shop.get_user", {"id": 1}, token=body["access_token"])
    assert allowed.status_code == 200
    hidden = await gateway.call("shop.list_users", token=body["access_token"])
    assert (hidden.status_code, _error_slug(hidden)) == (404, "tool-not-found")


async def test_what_is_lent_on_names_everybody_in_between_and_only_shrinks(gateway: HttpGateway) -> None:
    first = await gateway.exchange_token(gateway.token("ana"), agent="planner", scope="shop:write", lifetime="600")
    second = await gateway.exchange_token(first, agent="worker", lifetime="9999")
    claims = _decode_claims(second)
    assert claims["act"] == {"sub": "worker", "act": {"sub": "planner"}}
    assert claims["grants"][1:] == _decode_claims(first)["grants"]
    assert claims["exp"] <= _decode_claims(first)["exp"]
    for wider in ({"scope": "shop:write shop:delete"}, {"scope": ADMIN}):
        refused = await gateway.post_exchange(second, agent="third", **wider)
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_scope")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"grant_type": "password"}, "unsupported_grant_type"),
        ({"grant_type": "client_credentials"}, "invalid_request"),
        ({"client_assertion": "x"}, "invalid_request"),
        ({"subject_token": None}, "invalid_request"),
        ({"subject_token_type": None}, "invalid_request"),
        ({"subject_token_type": "urn:ietf:params:oauth:token-type:id_token"}, "invalid_request"),
        ({"subject_token": "nonsense"}, "invalid_request"),
        ({"requested_token_type": "urn:ietf:params:oauth:token-type:refresh_token"}, "invalid_request"),
        ({"agent": None}, "invalid_request"),
        ({"agent": "a\nb"}, "invalid_request"),
        ({"agent": "did:web:agents.example"}, "invalid_request"),
        ({"resource": "https://elsewhere.example"}, "invalid_target"),
        ({"audience": PUBLIC_URL + ".evil"}, "invalid_target"),
        ({"scope": "not:mine"}, "invalid_scope"),
        ({"tools": "{}"}, "invalid_request"),
        ({"tools": "[1]"}, "invalid_request"),
        ({"tools": '[{"tool_id": "shop.get_user", "version_range": "so-so"}]'}, "invalid_request"),
        ({"ceiling": "anything"}, "invalid_request"),
        ({"task": "t" * 201}, "invalid_request"),
        ({"constraints": "[]"}, "invalid_request"),
        ({"constraints": '{"most": 5}'}, "invalid_request"),
        ({"constraints": '{"a": "' + "x" * 4096 + '"}'}, "invalid_request"),
        ({"lifetime": "0"}, "invalid_request"),
        ({"lifetime": "1h"}, "invalid_request"),
        ({"celing": "read"}, "invalid_request"),
        ({"actor_token": "x"}, "invalid_request"),
        ({"actor_token": "x", "actor_token_type": ACCESS_TOKEN}, "invalid_request"),
    ],
)
async def test_what_cannot_be_lent_is_refused_as_oauth_says_it(
    fields: dict[str, str | None], error: str, gateway: HttpGateway
) -> None:
    answer = await gateway.post_exchange(**fields)
    body = answer.json()
    assert (answer.status_code, body["error"]) == (400, error), body
    assert body["error_description"].isascii()
    assert body["problem"]["error"]["advice"]
    assert answer.headers["cache-control"] == "no-store"


async def test_a_parameter_sent_twice_is_refused_and_this_gateway_as_target_is_not(gateway: HttpGateway) -> None:
    twice = "grant_type=a&grant_type=b"
    answer = await gateway.http.post(
        "/oauth/token", content=twice, headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")
    assert (await gateway.post_exchange(resource=PUBLIC_URL, audience=PUBLIC_URL + "/")).status_code == 200


async def test_to_administer_is_lent_only_by_name(gateway: HttpGateway) -> None:
    root = gateway.token("root", scopes=(*SCOPES, ADMIN))
    assert ADMIN not in _decode_claims(await gateway.exchange_token(root))["scope"]
    assert ADMIN in _decode_claims(await gateway.exchange_token(root, scope=f"{ADMIN} shop:write"))["scope"]


async def test_an_agent_proves_who_it_is_by_its_issuer(gateway: HttpGateway) -> None:
    bot = gateway.token("billing-bot", scopes=())
    actor = {"agent": None, "actor_token": bot, "actor_token_type": ACCESS_TOKEN}
    act = _decode_claims(await gateway.exchange_token(**actor))["act"]
    assert act == {"sub": "billing-bot", "iss": "urn:deputize:development"}
    other = await gateway.post_exchange(**{**actor, "agent": "somebody-else"})
    assert (other.status_code, _error_slug(other)) == (400, "exchange-refused")
    for bad in (gateway.other_token("billing-bot"), await gateway.exchange_token(), gateway.token("x", agent="y")):
        refused = await gateway.post_exchange(**{**actor, "actor_token": bad})
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_request"), bad


def _sign_did_token(key: Ed25519PrivateKey, **changes: Any) -> tuple[str, str]:
    multikey = "z" + encode_base58(b"\xed\x01" + key.public_key().public_bytes_raw())
    did, now = f"did:key:{multikey}", Clock().epoch_ms() // 1000
    claims = {"iss": did, "sub": did, "aud": PUBLIC_URL, "iat": now, "exp": now + 300, **changes}
    return did, jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": f"{did}#{multikey}"})


async def test_an_agent_proves_that_it_is_its_did(gateway: HttpGateway) -> None:
    did, token = _sign_did_token(Ed25519PrivateKey.generate())
    lent = await gateway.exchange_token(agent=None, actor_token=token, actor_token_type=ACCESS_TOKEN)
    assert _decode_claims(lent)["act"] == {"sub": did, "iss": did}
    assert (await gateway.call("shop.get_user", {"id": 1}, token=lent)).status_code == 200
    # It proves who somebody is, not what they may do.
    assert (await gateway.call("shop.get_user", {"id": 1}, token=token)).status_code == 401


@pytest.mark.parametrize(
    "changes",
    [
        {"sub": "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"}, {"aud": "https://elsewhere.example"},
        {"exp": 1}, {"exp": 4_000_000_000}, {"act": {"sub": "x"}}, {"iss": "did:web:nowhere.invalid"}, {"nonce": "n"},
        {"iss": "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"},
    ],
)  # fmt: skip
async def test_a_did_signs_only_for_itself_for_us_and_for_a_short_time(
    changes: dict[str, Any], gateway: HttpGateway
) -> None:
    _, token = _sign_did_token(Ed25519PrivateKey.generate(), **changes)
    refused = await gateway.post_exchange(agent=None, actor_token=token, actor_token_type=ACCESS_TOKEN)
    assert refused.status_code in (400, 503), refused.text


async def test_who_alone_may_act_for_a_subject_is_heeded(gateway: HttpGateway) -> None:
    now = Clock().epoch_ms() // 1000
    claims = {
        "iss": "https://login.other.example", "aud": "deputize", "sub": "olaf", "iat": now, "exp": now + 60,
        "may_act": {"sub": "trusted-bot"},
    }  # fmt: skip
    token = jwt.encode(claims, gateway.other_key, algorithm="EdDSA", headers={"kid": "other"})
    assert _decode_claims(await gateway.exchange_token(token, agent="trusted-bot"))["act"] == {"sub": "trusted-bot"}
    lent = await gateway.exchange_token(token, agent="trusted-bot")
    for held in (token, lent, await gateway.exchange_token(lent, agent="trusted-bot")):
        refused = await gateway.post_exchange(held, agent="bot")
        assert (refused.status_code, _error_slug(refused)) == (400, "exchange-refused")


async def test_a_token_of_one_tenant_is_nothing_in_another(gateway: HttpGateway) -> None:
    lent = await gateway.exchange_token(gateway.other_token())
    header, _, signature = lent.split(".")
    forged = {**_decode_claims(lent), "iss": f"{PUBLIC_URL}/t/dev"}
    body = base64.urlsafe_b64encode(orjson.dumps(forged)).rstrip(b"=").decode()
    assert (await gateway.get("/v1/tools", token=lent)).json()["tools"] == []
    for bad in (f"{header}.{body}.{signature}", jwt.encode(forged, gateway.other_key, algorithm="EdDSA")):
        answer = await gateway.get("/v1/tools", token=bad)
        assert (answer.status_code, _error_slug(answer)) == (401, "token-signature")


async def test_a_grant_that_is_taken_back_takes_everything_with_it_that_was_made_from_it(gateway: HttpGateway) -> None:
    ana = gateway.token("ana")
    first = await gateway.exchange_token(ana, agent="planner")
    second = await gateway.exchange_token(first, agent="worker")
    beside = await gateway.exchange_token(ana, agent="planner")
    for token in (first, second):
        assert (await gateway.call("shop.get_user", {"id": 1}, token=token)).status_code == 200
    gone = await gateway.http.delete(
        f"/v1/grants/{_decode_claims(first)['jti']}", headers={"authorization": f"Bearer {ana}"}
    )
    assert (gone.status_code, gone.json()["state"]) == (200, "revoked")
    for token in (first, second):
        refused = await gateway.call("shop.get_user", {"id": 1}, token=token)
        assert (refused.status_code, _error_slug(refused)) == (401, "revoked")
        again = await gateway.post_exchange(token, agent="third")
        assert (again.status_code, _error_slug(again)) == (400, "revoked")
    assert (await gateway.call("shop.get_user", {"id": 1}, token=beside)).status_code == 200
    states = {each["grant_id"]: each["state"] for each in (await gateway.get("/v1/grants", token=ana)).json()["grants"]}
    assert [states[_decode_claims(each)["jti"]] for each in (first, second, beside)] == ["revoked", "revoked", "active"]


@pytest.mark.parametrize(
    ("kind", "value"), [("agent", "doomed-agent"), ("user", "doomed-user"), ("subject", "doomed-agent"), ("token", "")]
)
async def test_administrators_revoke_by_agent_user_subject_and_token(
    kind: str, value: str, gateway: HttpGateway
) -> None:
    user, agent = f"doomed-user-{kind}", f"doomed-agent-{kind}"
    lent = await gateway.exchange_token(gateway.token(user), agent=agent)
    named = _decode_claims(lent)["jti"] if kind == "token" else f"{value}-{kind}"
    assert (await gateway.call("shop.get_user", {"id": 1}, token=lent)).status_code == 200
    root = gateway.token("root", scopes=[ADMIN])
    made = await gateway.post("/v1/revocations", {"kind": kind, "value": named}, token=root)
    assert made.status_code == 201
    refused = await gateway.call("shop.get_user", {"id": 1}, token=lent)
    assert (refused.status_code, _error_slug(refused)) == (401, "revoked")
    # Somebody of that name in the other part is not meant, unless it is the subject that was revoked.
    as_user = await gateway.call("shop.get_user", {"id": 1}, token=gateway.token(agent))
    assert as_user.status_code == (401 if kind == "subject" else 200)
    anew = await gateway.post_exchange(gateway.token(user), agent=agent)
    assert (anew.status_code == 200) == (kind == "token")


@pytest.mark.parametrize("ceiling", ["read", "write"])
async def test_who_was_lent_to_administer_and_to_change_nothing_changes_nothing(
    gateway: HttpGateway, ceiling: str
) -> None:
    root = gateway.token("root", scopes=[ADMIN])
    looking = await gateway.exchange_token(root, agent="auditor", scope=ADMIN, ceiling=ceiling)
    assert (await gateway.get("/v1/policies", token=looking)).status_code == 200
    for path, body in (
        ("/v1/revocations", {"kind": "user", "value": "nobody"}),
        ("/v1/switches", {"kind": "agent", "value": "nobody", "off": True}),
        ("/v1/secrets", {"name": "some", "value": "long-enough"}),
        (f"/v1/human-tasks/{UNKNOWN_ID}/resolve", {"outcome": "happened", "reason": "seen"}),
        (f"/v1/webhooks/deadletters/{UNKNOWN_ID}/retry", None),
    ):
        refused = await gateway.post(path, body, token=looking)
        assert (refused.status_code, _error_slug(refused)) == (403, "not-in-capability")
    acting = await gateway.exchange_token(root, agent="helper", scope=ADMIN, ceiling="destructive")
    assert (await gateway.post("/v1/revocations", {"kind": "user", "value": "no"}, token=acting)).status_code == 201


async def test_a_stolen_token_that_is_revoked_takes_with_it_what_the_thief_lent_from_it(gateway: HttpGateway) -> None:
    stolen = gateway.token("robbed")
    lent = await gateway.exchange_token(stolen, agent="thief")
    passed_on = await gateway.exchange_token(lent, agent="fence")
    root = gateway.token("root", scopes=[ADMIN])
    await gateway.post("/v1/revocations", {"kind": "token", "value": _decode_claims(stolen)["jti"]}, token=root)
    for token in (stolen, lent, passed_on):
        refused = await gateway.call("shop.get_user", {"id": 1}, token=token)
        assert (refused.status_code, _error_slug(refused)) == (401, "revoked")
    assert (await gateway.call("shop.get_user", {"id": 1}, token=gateway.token("robbed"))).status_code == 200


async def test_delegations_are_seen_by_who_made_them(gateway: HttpGateway) -> None:
    zoe = gateway.token("zoe")
    first = await gateway.exchange_token(
        zoe,
        agent="planner",
        task="t-1",
        ceiling="write",
        constraints='{"environments": ["staging"]}',
        tools=READ_ONE,
    )
    second = await gateway.exchange_token(first, agent="worker", ceiling="read")
    first_id, second_id = _decode_claims(first)["jti"], _decode_claims(second)["jti"]

    async def list_grants(token: str) -> list[str]:
        return [each["grant_id"] for each in (await gateway.get("/v1/grants", token=token)).json()["grants"]]

    assert await list_grants(zoe) == [second_id, first_id]
    assert await list_grants(first) == [second_id, first_id]
    assert (await list_grants(second), await list_grants(gateway.token("yan"))) == ([second_id], [])
    assert {first_id, second_id} <= set(await list_grants(gateway.token("root", scopes=[ADMIN])))
    shown = (await gateway.get(f"/v1/grants/{first_id.upper()}", token=zoe)).json()
    assert (shown["user"], shown["agents"], shown["task"], shown["ceiling"]) == ("zoe", ["planner"], "t-1", "write")
    assert (shown["constraints"], shown["tools"]) == ({"environments": ["staging"]}, orjson.loads(READ_ONE))
    assert (await gateway.get(f"/v1/grants/{second_id}", token=zoe)).json()["parent"] == first_id
    for stranger, id in (
        (gateway.token("yan"), first_id),
        (second, first_id),
        (zoe, UNKNOWN_ID),
        (zoe, "x"),
    ):
        answer = await gateway.get(f"/v1/grants/{id}", token=stranger)
        assert (answer.status_code, _error_slug(answer)) == (404, "grant-not-found")
        headers = {"authorization": f"Bearer {stranger}"}
        assert (await gateway.http.delete(f"/v1/grants/{id}", headers=headers)).status_code == 404
    page = (await gateway.get("/v1/grants", token=zoe, limit=1)).json()
    assert page["next_before"] == second_id
    rest = (await gateway.get("/v1/grants", token=zoe, before=second_id)).json()
    assert [each["grant_id"] for each in rest["grants"]] == [first_id]


async def test_anybody_learns_whose_tokens_are_taken_and_what_lent_ones_are_signed_with(gateway: HttpGateway) -> None:
    resource = (await gateway.http.get("/.well-known/oauth-protected-resource")).json()
    assert resource["resource"] == PUBLIC_URL
    assert resource["authorization_servers"] == ["https://login.other.example"]
    assert resource["bearer_methods_supported"] == ["header"]
    assert set(SCOPES) <= set(resource["scopes_supported"])
    assert ADMIN not in resource["scopes_supported"]
    for path in ("/t/dev/.well-known/oauth-authorization-server", "/.well-known/oauth-authorization-server/t/dev"):
        server = (await gateway.http.get(path)).json()
        assert server["issuer"] == f"{PUBLIC_URL}/t/dev"
        assert server["token_endpoint"] == f"{PUBLIC_URL}/oauth/token"
    lent = await gateway.exchange_token()
    keys = (await gateway.http.get("/t/dev/jwks.json")).json()
    assert not any("d" in each for each in keys["keys"])
    kid = jwt.get_unverified_header(lent)["kid"]
    key = next(each for each in jwt.PyJWKSet.from_dict(keys).keys if each.key_id == kid)
    assert jwt.decode(lent, key, algorithms=["EdDSA"], audience=PUBLIC_URL)["sub"] == "ana"


async def test_a_tenant_that_lent_nothing_answers_like_one_that_is_not_there(gateway: HttpGateway) -> None:
    for path in ("/t/{}/jwks.json", "/t/{}/.well-known/oauth-authorization-server"):
        never, nobody = await gateway.http.get(path.format("quiet")), await gateway.http.get(path.format("nobody"))
        assert never.status_code == nobody.status_code == 200
        assert never.text.replace("quiet", "nobody") == nobody.text


async def test_anybody_learns_who_this_gateway_is_where_it_signs_in_to_servers(gateway: HttpGateway) -> None:
    client = (await gateway.http.get("/.well-known/oauth-client")).json()
    assert client["client_id"] == f"{PUBLIC_URL}/.well-known/oauth-client"
    assert client["redirect_uris"] == [f"{PUBLIC_URL}/console/servers/callback"]
    assert client["token_endpoint_auth_method"] == "none"
    assert client["application_type"] == "web"


async def test_every_interface_returns_resource_metadata_for_a_refused_token(gateway: HttpGateway) -> None:
    where = f'resource_metadata="{PUBLIC_URL}/.well-known/oauth-protected-resource"'
    for headers, error in (({}, False), ({"authorization": "Bearer nonsense"}, True)):
        answers = [
            await gateway.http.post("/v1/calls", json={"tool": "shop.get_user"}, headers=headers),
            await gateway.http.post("/rpc", json={"jsonrpc": "2.0", "id": 1, "method": "tools.list"}, headers=headers),
            await gateway.http.get("/v1/tools", headers=headers),
            await gateway.http.get("/v1/grants", headers=headers),
        ]
        for answer in answers:
            said = answer.headers["www-authenticate"]
            assert answer.status_code == 401
            assert said.startswith("Bearer ")
            assert where in said
            assert ('error="invalid_token"' in said) == error


async def test_the_answer_to_a_revoked_call_says_so_too(gateway: HttpGateway) -> None:
    lent = await gateway.exchange_token(gateway.token("revoked-here"))
    root = gateway.token("root", scopes=[ADMIN])
    await gateway.post("/v1/revocations", {"kind": "user", "value": "revoked-here"}, token=root)
    refused = await gateway.call("shop.get_user", {"id": 1}, token=lent)
    assert 'error="invalid_token", resource_metadata=' in refused.headers["www-authenticate"]
