"""Authority lent over real HTTP: what an exchange gives, what it never gives, and how it is taken back."""

import base64
from typing import Any

import httpx2
import jwt
import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.clock import Clock
from tests.integration.conftest import ACCESS_TOKEN, ADMIN, PUBLIC_URL, SCOPES, Served
from tests.unit.govern.identity.test_dids import encode58

pytestmark = pytest.mark.requirement("GOV-1", "NEW-7")

NOBODY = "01890000-0000-7000-8000-000000000000"
READ_ONE = '[{"tool_id": "shop.get_user", "version_range": "^1"}]'


def _claims(token: str) -> dict[str, Any]:
    return dict(jwt.decode(token, options={"verify_signature": False}))


def _slug(answer: httpx2.Response) -> str:
    body = answer.json()
    return str(body.get("problem", body)["error"]["slug"])


async def test_a_users_token_becomes_an_agents_that_can_do_less(served: Served) -> None:
    answer = await served.exchange(
        served.token("ana"), scope="shop:write", tools=READ_ONE, task="reports", lifetime="60"
    )
    body = answer.json()
    assert answer.status_code == 200, body
    assert (body["token_type"], body["scope"], body["expires_in"]) == ("Bearer", "shop:write", 60)
    assert body["issued_token_type"] == ACCESS_TOKEN
    assert answer.headers["cache-control"] == "no-store"
    claims = _claims(body["access_token"])
    assert (claims["iss"], claims["aud"], claims["sub"]) == (f"{PUBLIC_URL}/t/dev", PUBLIC_URL, "ana")
    assert (claims["act"], claims["grants"], claims["task"]) == ({"sub": "bot"}, [body["grant_id"]], "reports")
    allowed = await served.call("shop.get_user", {"id": 1}, token=body["access_token"])
    assert allowed.status_code == 200
    hidden = await served.call("shop.list_users", token=body["access_token"])
    assert (hidden.status_code, _slug(hidden)) == (404, "tool-not-found")


async def test_what_is_lent_on_names_everybody_in_between_and_only_shrinks(served: Served) -> None:
    first = await served.lent(served.token("ana"), agent="planner", scope="shop:write", lifetime="600")
    second = await served.lent(first, agent="worker", lifetime="9999")
    claims = _claims(second)
    assert claims["act"] == {"sub": "worker", "act": {"sub": "planner"}}
    assert claims["grants"][1:] == _claims(first)["grants"]
    assert claims["exp"] <= _claims(first)["exp"]
    for wider in ({"scope": "shop:write shop:delete"}, {"scope": ADMIN}):
        refused = await served.exchange(second, agent="third", **wider)
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_scope")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"grant_type": "client_credentials"}, "unsupported_grant_type"),
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
        ({"constraints": '{"a": "' + "x" * 4096 + '"}'}, "invalid_request"),
        ({"lifetime": "0"}, "invalid_request"),
        ({"lifetime": "1h"}, "invalid_request"),
        ({"celing": "read"}, "invalid_request"),
        ({"actor_token": "x"}, "invalid_request"),
        ({"actor_token": "x", "actor_token_type": ACCESS_TOKEN}, "invalid_request"),
    ],
)
async def test_what_cannot_be_lent_is_refused_as_oauth_says_it(
    fields: dict[str, str | None], error: str, served: Served
) -> None:
    answer = await served.exchange(**fields)
    body = answer.json()
    assert (answer.status_code, body["error"]) == (400, error), body
    assert body["error_description"].isascii()
    assert body["problem"]["error"]["advice"]
    assert answer.headers["cache-control"] == "no-store"


async def test_a_parameter_sent_twice_is_refused_and_this_gateway_as_target_is_not(served: Served) -> None:
    twice = "grant_type=a&grant_type=b"
    answer = await served.http.post(
        "/oauth/token", content=twice, headers={"content-type": "application/x-www-form-urlencoded"}
    )
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")
    assert (await served.exchange(resource=PUBLIC_URL, audience=PUBLIC_URL + "/")).status_code == 200


async def test_to_administer_is_lent_only_by_name(served: Served) -> None:
    root = served.token("root", scopes=(*SCOPES, ADMIN))
    assert ADMIN not in _claims(await served.lent(root))["scope"]
    assert ADMIN in _claims(await served.lent(root, scope=f"{ADMIN} shop:write"))["scope"]


async def test_an_agent_proves_who_it_is_by_its_issuer(served: Served) -> None:
    bot = served.token("billing-bot", scopes=())
    actor = {"agent": None, "actor_token": bot, "actor_token_type": ACCESS_TOKEN}
    assert _claims(await served.lent(**actor))["act"] == {"sub": "billing-bot"}
    other = await served.exchange(**{**actor, "agent": "somebody-else"})
    assert (other.status_code, _slug(other)) == (400, "exchange-refused")
    for bad in (served.other_token("billing-bot"), await served.lent(), served.token("x", agent="y")):
        refused = await served.exchange(**{**actor, "actor_token": bad})
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_request"), bad


def _did_token(key: Ed25519PrivateKey, **changes: Any) -> tuple[str, str]:
    multikey = "z" + encode58(b"\xed\x01" + key.public_key().public_bytes_raw())
    did, now = f"did:key:{multikey}", Clock().epoch_ms() // 1000
    claims = {"iss": did, "sub": did, "aud": PUBLIC_URL, "iat": now, "exp": now + 300, **changes}
    return did, jwt.encode(claims, key, algorithm="EdDSA", headers={"kid": f"{did}#{multikey}"})


async def test_an_agent_proves_that_it_is_its_did(served: Served) -> None:
    did, token = _did_token(Ed25519PrivateKey.generate())
    lent = await served.lent(agent=None, actor_token=token, actor_token_type=ACCESS_TOKEN)
    assert _claims(lent)["act"] == {"sub": did}
    assert (await served.call("shop.get_user", {"id": 1}, token=lent)).status_code == 200
    # It proves who somebody is, not what they may do.
    assert (await served.call("shop.get_user", {"id": 1}, token=token)).status_code == 401


@pytest.mark.parametrize(
    "changes",
    [
        {"sub": "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"}, {"aud": "https://elsewhere.example"},
        {"exp": 1}, {"exp": 4_000_000_000}, {"act": {"sub": "x"}}, {"iss": "did:web:nowhere.invalid"}, {"nonce": "n"},
        {"iss": "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"},
    ],
)  # fmt: skip
async def test_a_did_signs_only_for_itself_for_us_and_for_a_short_time(changes: dict[str, Any], served: Served) -> None:
    _, token = _did_token(Ed25519PrivateKey.generate(), **changes)
    refused = await served.exchange(agent=None, actor_token=token, actor_token_type=ACCESS_TOKEN)
    assert refused.status_code in (400, 503), refused.text


async def test_who_alone_may_act_for_a_subject_is_heeded(served: Served) -> None:
    now = Clock().epoch_ms() // 1000
    claims = {
        "iss": "https://login.other.example", "aud": "deputize", "sub": "olaf", "iat": now, "exp": now + 60,
        "may_act": {"sub": "trusted-bot"},
    }  # fmt: skip
    token = jwt.encode(claims, served.other_key, algorithm="EdDSA", headers={"kid": "other"})
    assert _claims(await served.lent(token, agent="trusted-bot"))["act"] == {"sub": "trusted-bot"}
    lent = await served.lent(token, agent="trusted-bot")
    for held in (token, lent, await served.lent(lent, agent="trusted-bot")):
        refused = await served.exchange(held, agent="bot")
        assert (refused.status_code, _slug(refused)) == (400, "exchange-refused")


async def test_a_token_of_one_tenant_is_nothing_in_another(served: Served) -> None:
    lent = await served.lent(served.other_token())
    header, _, signature = lent.split(".")
    forged = {**_claims(lent), "iss": f"{PUBLIC_URL}/t/dev"}
    body = base64.urlsafe_b64encode(orjson.dumps(forged)).rstrip(b"=").decode()
    assert (await served.get("/v1/tools", token=lent)).json()["tools"] == []
    for bad in (f"{header}.{body}.{signature}", jwt.encode(forged, served.other_key, algorithm="EdDSA")):
        answer = await served.get("/v1/tools", token=bad)
        assert (answer.status_code, _slug(answer)) == (401, "token-signature")


async def test_a_grant_that_is_taken_back_takes_everything_with_it_that_was_made_from_it(served: Served) -> None:
    ana = served.token("ana")
    first = await served.lent(ana, agent="planner")
    second = await served.lent(first, agent="worker")
    beside = await served.lent(ana, agent="planner")
    for token in (first, second):
        assert (await served.call("shop.get_user", {"id": 1}, token=token)).status_code == 200
    gone = await served.http.delete(f"/v1/grants/{_claims(first)['jti']}", headers={"authorization": f"Bearer {ana}"})
    assert (gone.status_code, gone.json()["state"]) == (200, "revoked")
    for token in (first, second):
        refused = await served.call("shop.get_user", {"id": 1}, token=token)
        assert (refused.status_code, _slug(refused)) == (401, "revoked")
        again = await served.exchange(token, agent="third")
        assert (again.status_code, _slug(again)) == (400, "revoked")
    assert (await served.call("shop.get_user", {"id": 1}, token=beside)).status_code == 200
    states = {each["grant_id"]: each["state"] for each in (await served.get("/v1/grants", token=ana)).json()["grants"]}
    assert [states[_claims(each)["jti"]] for each in (first, second, beside)] == ["revoked", "revoked", "active"]


@pytest.mark.parametrize(
    ("kind", "value"), [("agent", "doomed-agent"), ("user", "doomed-user"), ("subject", "doomed-agent"), ("token", "")]
)
async def test_administrators_revoke_by_agent_user_subject_and_token(kind: str, value: str, served: Served) -> None:
    user, agent = f"doomed-user-{kind}", f"doomed-agent-{kind}"
    lent = await served.lent(served.token(user), agent=agent)
    named = _claims(lent)["jti"] if kind == "token" else f"{value}-{kind}"
    assert (await served.call("shop.get_user", {"id": 1}, token=lent)).status_code == 200
    root = served.token("root", scopes=[ADMIN])
    made = await served.post("/v1/revocations", {"kind": kind, "value": named}, token=root)
    assert made.status_code == 201
    refused = await served.call("shop.get_user", {"id": 1}, token=lent)
    assert (refused.status_code, _slug(refused)) == (401, "revoked")
    # Somebody of that name in the other part is not meant, unless it is the subject that was revoked.
    as_user = await served.call("shop.get_user", {"id": 1}, token=served.token(agent))
    assert as_user.status_code == (401 if kind == "subject" else 200)
    anew = await served.exchange(served.token(user), agent=agent)
    assert (anew.status_code == 200) == (kind == "token")


@pytest.mark.parametrize("ceiling", ["read", "write"])
async def test_who_was_lent_to_administer_and_to_change_nothing_changes_nothing(served: Served, ceiling: str) -> None:
    root = served.token("root", scopes=[ADMIN])
    looking = await served.lent(root, agent="auditor", scope=ADMIN, ceiling=ceiling)
    assert (await served.get("/v1/policies", token=looking)).status_code == 200
    for path, body in (
        ("/v1/revocations", {"kind": "user", "value": "nobody"}),
        ("/v1/switches", {"kind": "agent", "value": "nobody", "off": True}),
        ("/v1/secrets", {"name": "some", "value": "long-enough"}),
        (f"/v1/tickets/{NOBODY}/resolve", {"outcome": "happened", "reason": "seen"}),
        (f"/v1/webhooks/deadletters/{NOBODY}/retry", None),
    ):
        refused = await served.post(path, body, token=looking)
        assert (refused.status_code, _slug(refused)) == (403, "not-in-capability")
    acting = await served.lent(root, agent="helper", scope=ADMIN, ceiling="destructive")
    assert (await served.post("/v1/revocations", {"kind": "user", "value": "no"}, token=acting)).status_code == 201


async def test_a_stolen_token_that_is_revoked_takes_with_it_what_the_thief_lent_from_it(served: Served) -> None:
    stolen = served.token("robbed")
    lent = await served.lent(stolen, agent="thief")
    passed_on = await served.lent(lent, agent="fence")
    root = served.token("root", scopes=[ADMIN])
    await served.post("/v1/revocations", {"kind": "token", "value": _claims(stolen)["jti"]}, token=root)
    for token in (stolen, lent, passed_on):
        refused = await served.call("shop.get_user", {"id": 1}, token=token)
        assert (refused.status_code, _slug(refused)) == (401, "revoked")
    assert (await served.call("shop.get_user", {"id": 1}, token=served.token("robbed"))).status_code == 200


async def test_delegations_are_seen_by_who_made_them(served: Served) -> None:
    zoe = served.token("zoe")
    first = await served.lent(
        zoe, agent="planner", task="t-1", ceiling="write", constraints='{"most": 5}', tools=READ_ONE
    )
    second = await served.lent(first, agent="worker", ceiling="read")
    first_id, second_id = _claims(first)["jti"], _claims(second)["jti"]

    async def seen(token: str) -> list[str]:
        return [each["grant_id"] for each in (await served.get("/v1/grants", token=token)).json()["grants"]]

    assert await seen(zoe) == [second_id, first_id]
    assert await seen(first) == [second_id]
    assert await seen(second) == await seen(served.token("yan")) == []
    assert {first_id, second_id} <= set(await seen(served.token("root", scopes=[ADMIN])))
    shown = (await served.get(f"/v1/grants/{first_id.upper()}", token=zoe)).json()
    assert (shown["user"], shown["agents"], shown["task"], shown["ceiling"]) == ("zoe", ["planner"], "t-1", "write")
    assert (shown["constraints"], shown["tools"]) == ({"most": 5}, orjson.loads(READ_ONE))
    assert (await served.get(f"/v1/grants/{second_id}", token=zoe)).json()["parent"] == first_id
    for stranger, id in (
        (served.token("yan"), first_id),
        (second, first_id),
        (first, first_id),
        (zoe, NOBODY),
        (zoe, "x"),
    ):
        answer = await served.get(f"/v1/grants/{id}", token=stranger)
        assert (answer.status_code, _slug(answer)) == (404, "grant-not-found")
        headers = {"authorization": f"Bearer {stranger}"}
        assert (await served.http.delete(f"/v1/grants/{id}", headers=headers)).status_code == 404
    page = (await served.get("/v1/grants", token=zoe, limit=1)).json()
    assert page["next_before"] == second_id
    rest = (await served.get("/v1/grants", token=zoe, before=second_id)).json()
    assert [each["grant_id"] for each in rest["grants"]] == [first_id]


async def test_anybody_learns_whose_tokens_are_taken_and_what_lent_ones_are_signed_with(served: Served) -> None:
    resource = (await served.http.get("/.well-known/oauth-protected-resource")).json()
    assert resource["resource"] == PUBLIC_URL
    assert resource["authorization_servers"] == ["https://login.other.example"]
    assert resource["bearer_methods_supported"] == ["header"]
    assert set(SCOPES) <= set(resource["scopes_supported"])
    assert ADMIN not in resource["scopes_supported"]
    for path in ("/t/dev/.well-known/oauth-authorization-server", "/.well-known/oauth-authorization-server/t/dev"):
        server = (await served.http.get(path)).json()
        assert server["issuer"] == f"{PUBLIC_URL}/t/dev"
        assert server["token_endpoint"] == f"{PUBLIC_URL}/oauth/token"
    lent = await served.lent()
    keys = (await served.http.get("/t/dev/jwks.json")).json()
    assert not any("d" in each for each in keys["keys"])
    kid = jwt.get_unverified_header(lent)["kid"]
    key = next(each for each in jwt.PyJWKSet.from_dict(keys).keys if each.key_id == kid)
    assert jwt.decode(lent, key, algorithms=["EdDSA"], audience=PUBLIC_URL)["sub"] == "ana"


async def test_a_tenant_that_lent_nothing_answers_like_one_that_is_not_there(served: Served) -> None:
    for path in ("/t/{}/jwks.json", "/t/{}/.well-known/oauth-authorization-server"):
        never, nobody = await served.http.get(path.format("quiet")), await served.http.get(path.format("nobody"))
        assert never.status_code == nobody.status_code == 200
        assert never.text.replace("quiet", "nobody") == nobody.text


async def test_anybody_learns_who_this_gateway_is_where_it_signs_in_to_servers(served: Served) -> None:
    client = (await served.http.get("/.well-known/oauth-client")).json()
    assert client["client_id"] == f"{PUBLIC_URL}/.well-known/oauth-client"
    assert client["redirect_uris"] == [f"{PUBLIC_URL}/console/servers/callback"]
    assert client["token_endpoint_auth_method"] == "none"
    assert client["application_type"] == "web"


async def test_a_refused_token_is_told_where_to_learn_more_at_every_door(served: Served) -> None:
    where = f'resource_metadata="{PUBLIC_URL}/.well-known/oauth-protected-resource"'
    for headers, error in (({}, False), ({"authorization": "Bearer nonsense"}, True)):
        answers = [
            await served.http.post("/v1/calls", json={"tool": "shop.get_user"}, headers=headers),
            await served.http.post("/rpc", json={"jsonrpc": "2.0", "id": 1, "method": "tools.list"}, headers=headers),
            await served.http.get("/v1/tools", headers=headers),
            await served.http.get("/v1/grants", headers=headers),
        ]
        for answer in answers:
            said = answer.headers["www-authenticate"]
            assert answer.status_code == 401
            assert said.startswith("Bearer ")
            assert where in said
            assert ('error="invalid_token"' in said) == error


async def test_the_answer_to_a_revoked_call_says_so_too(served: Served) -> None:
    lent = await served.lent(served.token("revoked-here"))
    root = served.token("root", scopes=[ADMIN])
    await served.post("/v1/revocations", {"kind": "user", "value": "revoked-here"}, token=root)
    refused = await served.call("shop.get_user", {"id": 1}, token=lent)
    assert 'error="invalid_token", resource_metadata=' in refused.headers["www-authenticate"]
