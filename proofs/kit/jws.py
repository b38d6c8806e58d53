"""JSON Web Signatures by hand: what no library agrees to make."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization

from proofs.kit.idp.keys import PrivateKey, SigningKey

Sign = Callable[[bytes], bytes]


def encode_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def encode_part(value: Mapping[str, Any] | bytes | str) -> str:
    """One part of a token: of a mapping its JSON, of anything else the bytes as they are."""
    if isinstance(value, Mapping):
        value = json.dumps(value, separators=(",", ":"))
    return encode_base64url(value.encode() if isinstance(value, str) else value)


def assemble_token(header: Mapping[str, Any] | bytes | str, claims: Mapping[str, Any] | bytes | str, sign: Sign) -> str:
    signing_input = f"{encode_part(header)}.{encode_part(claims)}"
    return f"{signing_input}.{encode_base64url(sign(signing_input.encode()))}"


def read_header(token: str) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(decode_base64url(token.split(".")[0]))
    return header


def read_claims(token: str) -> dict[str, Any]:
    claims: dict[str, Any] = json.loads(decode_base64url(token.split(".")[1]))
    return claims


def make_signer(key: PrivateKey, algorithm: str) -> Sign:
    """Signs with any algorithm the key is able to, not only the one it is published for."""
    implementation: Any = jwt.algorithms.get_default_algorithms()[algorithm]
    return lambda message: bytes(implementation.sign(message, key))


def make_key_signer(key: SigningKey) -> Sign:
    return make_signer(key.private_key, key.algorithm)


def make_hmac_signer(algorithm: str, secret: bytes) -> Sign:
    """HMAC with any bytes, public keys included."""
    digest = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}[algorithm]
    return lambda message: hmac.new(secret, message, digest).digest()


def encode_public_key(key: SigningKey) -> dict[str, bytes]:
    """The public key in every spelling a careless verifier may take for a shared secret."""
    public = key.private_key.public_key()
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    pem = public.public_bytes(serialization.Encoding.PEM, spki)
    jwk = key.to_jwk(include_private=False)
    return {
        "pem": pem,
        "pem without its last newline": pem.rstrip(b"\n"),
        "der": public.public_bytes(serialization.Encoding.DER, spki),
        "jwk": json.dumps(jwk, separators=(",", ":")).encode(),
        "jwk's number": str(jwk.get("n") or jwk["x"]).encode(),
        "kid": key.kid.encode(),
        "nothing": b"",
    }
