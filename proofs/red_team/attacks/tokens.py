"""Get in with tokens that no issuer gave, or get more than a token gives."""

import json
from collections.abc import Iterator
from functools import partial
from urllib.parse import urlencode

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from proofs.kit.gateway import AUDIENCE, ISSUER, GatewayHandle
from proofs.kit.http_client import HttpConnection, HttpResponse
from proofs.kit.jws import assemble_token, encode_base64url, encode_part, make_hmac_signer
from proofs.red_team.arena import Arena
from proofs.red_team.attack import AttackLog, Control, Finding

NAME = "tokens"
CONTROL = Control(variant="deputy_any_audience", attempts=frozenset({"a token for another service"}))
_HEADER = {"alg": "EdDSA", "kid": "proof"}
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_EXCHANGE = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": _ACCESS_TOKEN,
    "agent": "helper",
}
# What a token that names one tool, reads only, and one task must not be exchanged for.
_WIDENINGS = {
    "more scopes": {"scope": "proof:write deputize:admin"},
    "another tool": {"tools": '[{"tool_id":"effects.send"}]'},
    "more versions": {"tools": '[{"tool_id":"effects.look","version_range":"*"}]'},
    "worse effects": {"ceiling": "destructive"},
    "another task": {"task": "t2"},
    "another audience": {"audience": "https://elsewhere.example"},
    "an agent named by a DID without proof": {"agent": "did:web:evil.example"},
}


async def attack(arena: Arena, log: AttackLog) -> None:
    port = arena.sandbox.pick_free_port()
    env = {"DEPUTIZE_IDENTITY__PUBLIC_URL": f"http://127.0.0.1:{port}"}
    gateway = await arena.start_gateway(tools="effects.py", env=env, port=port)

    async def present_token(token: str) -> Finding:
        answer = await _send(gateway, "GET", "/v1/tools", token=token)
        return Finding(succeeded=answer.status == 200, evidence=str(answer.status))

    async def exchange_token(parameters: dict[str, str]) -> Finding:
        form = urlencode({**_EXCHANGE, "subject_token": narrow, **parameters}).encode()
        answer = await _send(gateway, "POST", "/oauth/token", body=form)
        is_issued = b"access_token" in answer.body and answer.status == 200
        return Finding(succeeded=is_issued, evidence=f"{answer.status} {answer.body[:80].decode(errors='replace')}")

    present_good = partial(present_token, _sign(arena, _build_claims(arena)))
    for name, token in _forge_tokens(arena, gateway):
        await log.attempt(name, partial(present_token, token), baseline=present_good)
    narrow = _sign(arena, _build_claims(arena, scope="proof:write", task="t1", ceiling="read", tools=[
        {"tool_id": "effects.look", "version_range": "^1.0"}
    ]))  # fmt: skip
    exchange_narrow = partial(exchange_token, {})
    for name, parameters in _WIDENINGS.items():
        await log.attempt(f"an exchange for {name}", partial(exchange_token, parameters), baseline=exchange_narrow)


def _forge_tokens(arena: Arena, gateway: GatewayHandle) -> Iterator[tuple[str, str]]:
    key, attacker = arena.issuer.key, Ed25519PrivateKey.generate()
    good = _build_claims(arena)
    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": encode_base64url(attacker.public_key().public_bytes_raw())}
    yield "no signature", assemble_token({"alg": "none"}, good, lambda _: b"")
    yield (
        "a public key as a shared secret",
        assemble_token({"alg": "HS256", "kid": "proof"}, good, make_hmac_signer("HS256", public)),
    )
    yield "a key of the attacker's in the token", assemble_token({"alg": "EdDSA", "jwk": jwk}, good, attacker.sign)
    yield (
        "the address of a key set in the token",
        assemble_token({**_HEADER, "jku": f"{gateway.url}/jwks"}, good, attacker.sign),
    )
    yield "another key under a known id", assemble_token(_HEADER, good, attacker.sign)
    yield "a key id that is a path", assemble_token({"alg": "EdDSA", "kid": "../../dev/null"}, good, attacker.sign)
    yield "an unknown critical header", assemble_token({**_HEADER, "crit": ["b64"], "b64": False}, good, key.sign)
    yield "a token for another service", _sign(arena, {**good, "aud": "https://elsewhere.example"})
    yield "an expired token", _sign(arena, {**good, "exp": arena.issuer.clock.epoch_ms() // 1000 - 60})
    yield "an end that is no number", _sign(arena, {**good, "exp": str(good["exp"])})
    yield "an end beyond all numbers", _sign_raw(arena, good)
    yield "an issuer that is almost right", _sign(arena, {**good, "iss": f"{ISSUER}/"})
    yield "the gateway itself as the issuer", _sign(arena, {**good, "iss": f"{gateway.url}/t/acme"})
    yield "an identity token", _sign(arena, {**good, "nonce": "n", "at_hash": "h"})
    yield "a tenant that is no name", _sign(arena, {**good, "tenant": "../acme"})


def _sign_raw(arena: Arena, claims: dict[str, object]) -> str:
    """Sign claims whose end is 1e400, which Python's own encoder cannot write."""
    others = json.dumps({name: value for name, value in claims.items() if name != "exp"})
    text = others[:-1] + ',"exp":1e400}'
    body = f"{encode_part(_HEADER)}.{encode_part(text)}"
    return f"{body}.{encode_base64url(arena.issuer.key.sign(body.encode()))}"


def _build_claims(arena: Arena, **more: object) -> dict[str, object]:
    now = arena.issuer.clock.epoch_ms() // 1000
    return {
        "iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "tenant": "acme", "scope": "deputize:admin", "iat": now,
        "exp": now + 600, "jti": arena.issuer.clock.new_id(), **more,
    }  # fmt: skip


def _sign(arena: Arena, claims: dict[str, object]) -> str:
    return assemble_token(_HEADER, claims, arena.issuer.key.sign)


async def _send(gateway: GatewayHandle, method: str, path: str, *, token: str = "", body: bytes = b"") -> HttpResponse:
    connection = HttpConnection.for_url(gateway.url, token=token or None)
    headers = {"content-type": "application/x-www-form-urlencoded"} if body else {}
    try:
        return await connection.send(method, path, headers=headers, body=body)
    finally:
        connection.close()
