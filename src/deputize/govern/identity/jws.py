"""Parse signed JWTs (JWS), and verify their signatures with a key that was chosen for them."""

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

import jwt
import orjson

from deputize.core.errors import TokenIssuerUntrusted, TokenMalformed, TokenMissing, TokenSignatureInvalid
from deputize.govern.identity.claims import Claims

MAX_TOKEN_BYTES = 16_384
_ID_LENGTH = 32
# The signature may be empty here, so that an unsigned token gets a signature error instead of a format error.
_JWT_PATTERN = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]*)")
# RFC 9068 and RFC 8725: the type of access tokens, and the generic type.
_ACCESS_TOKEN_TYPE, _GENERIC_TYPE = "at+jwt", "jwt"
_JWS = jwt.PyJWS(
    algorithms=["RS256", "ES256", "EdDSA"],
    options={"verify_signature": True, "enforce_minimum_key_length": True},
)


@dataclass(frozen=True, kw_only=True, slots=True)
class UnverifiedToken:
    """The unverified parts of a token that are needed to choose its key."""

    algorithm: str
    key_id: str | None
    issuer: str
    signed_part: bytes
    is_access_token: bool


def parse_unverified(token: bytes) -> UnverifiedToken:
    if not token:
        raise TokenMissing("the request has no bearer token")
    if b"${" in token:
        raise TokenMalformed("the token contains ${: the client did not replace a variable")
    if len(token) > MAX_TOKEN_BYTES:
        raise TokenMalformed(f"the token is longer than {MAX_TOKEN_BYTES} bytes")
    match = _JWT_PATTERN.fullmatch(token)
    if match is None:
        raise TokenMalformed("the token does not have the three parts of a JWT")
    header, claims = _decode_json_part(match[1], "header"), _decode_json_part(match[2], "claims")
    issuer, algorithm, key_id = claims.get("iss"), header.get("alg"), header.get("kid")
    if not isinstance(issuer, str):
        raise TokenIssuerUntrusted("the token does not name its issuer")
    if not isinstance(algorithm, str) or not (key_id is None or isinstance(key_id, str)):
        raise TokenMalformed("the token's header has no valid alg or kid")
    return UnverifiedToken(
        algorithm=algorithm,
        key_id=key_id,
        issuer=issuer,
        signed_part=token[: match.end(2)],
        is_access_token=_is_access_token(header),
    )


def _is_access_token(header: dict[str, Any]) -> bool:
    """Tell whether the header marks an access token. A header without a type is accepted, another type rejected."""
    if "crit" in header:
        raise TokenMalformed("the token has critical extensions (crit), which this gateway does not support")
    kind = header.get("typ", _GENERIC_TYPE)
    name = kind.lower().removeprefix("application/") if isinstance(kind, str) else ""
    if name not in (_ACCESS_TOKEN_TYPE, _GENERIC_TYPE):
        raise TokenMalformed("the token's header (typ) does not mark an access token")
    return name == _ACCESS_TOKEN_TYPE


def _decode_json_part(part: bytes, name: str) -> dict[str, Any]:
    try:
        text = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
        value = orjson.loads(text)
        # Parsers differ in which of two equal keys they use, so duplicates are rejected.
        json.loads(text, object_pairs_hook=_reject_duplicates)
    except (ValueError, RecursionError):
        raise TokenMalformed(f"the token's {name} cannot be decoded") from None
    if not isinstance(value, dict):
        raise TokenMalformed(f"the token's {name} is not a JSON object")
    return value


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a key occurs twice")


def verify_claims(token: bytes, key: jwt.PyJWK, issuer: str) -> Claims:
    """Verify the signature, and parse the claims from exactly the bytes that were verified."""
    try:
        payload = _JWS.decode(token, key, algorithms=[key.algorithm_name])
        claims = orjson.loads(payload)
    except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError, jwt.InvalidKeyError) as error:
        raise TokenSignatureInvalid("the token's signature does not verify") from error
    except (jwt.PyJWTError, ValueError) as error:
        raise TokenMalformed("the token cannot be decoded") from error
    if not isinstance(claims, dict):
        raise TokenMalformed("the token's claims are not a JSON object")
    if claims.get("iss") != issuer:
        raise TokenIssuerUntrusted("the token's issuer is not the one that its key belongs to")
    return claims


def derive_token_id(signed_part: bytes) -> str:
    """Derive an id for a token without `jti`, without its signature: some signatures stay valid when altered."""
    return "sha256:" + hashlib.sha256(signed_part).hexdigest()[:_ID_LENGTH]
