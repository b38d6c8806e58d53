"""JSON Web Signatures by hand: what no library agrees to make.

Above: the generators of bad tokens. Below: cryptography, hashes.
"""

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


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def part_of(value: Mapping[str, Any] | bytes | str) -> str:
    """One part of a token: of a mapping its JSON, of anything else the bytes as they are."""
    if isinstance(value, Mapping):
        value = json.dumps(value, separators=(",", ":"))
    return encoded(value.encode() if isinstance(value, str) else value)


def assembled(header: Mapping[str, Any] | bytes | str, claims: Mapping[str, Any] | bytes | str, sign: Sign) -> str:
    signed = f"{part_of(header)}.{part_of(claims)}"
    return f"{signed}.{encoded(sign(signed.encode()))}"


def header_of(token: str) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(decoded(token.split(".")[0]))
    return header


def claims_of(token: str) -> dict[str, Any]:
    claims: dict[str, Any] = json.loads(decoded(token.split(".")[1]))
    return claims


def signer(key: PrivateKey, algorithm: str) -> Sign:
    """Signs with any algorithm the key is able to, not only the one it is published for."""
    does: Any = jwt.algorithms.get_default_algorithms()[algorithm]
    return lambda message: bytes(does.sign(message, key))


def own_signer(key: SigningKey) -> Sign:
    return signer(key.private, key.algorithm)


def secret_signer(algorithm: str, secret: bytes) -> Sign:
    """HMAC with any bytes, public keys included."""
    digest = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}[algorithm]
    return lambda message: hmac.new(secret, message, digest).digest()


def public_forms(key: SigningKey) -> dict[str, bytes]:
    """The public key in every spelling a careless verifier may take for a shared secret."""
    public = key.private.public_key()
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    pem = public.public_bytes(serialization.Encoding.PEM, spki)
    jwk = key.jwk(private=False)
    return {
        "pem": pem,
        "pem without its last newline": pem.rstrip(b"\n"),
        "der": public.public_bytes(serialization.Encoding.DER, spki),
        "jwk": json.dumps(jwk, separators=(",", ":")).encode(),
        "jwk's number": str(jwk.get("n") or jwk["x"]).encode(),
        "kid": key.kid.encode(),
        "nothing": b"",
    }
