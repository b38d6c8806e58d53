"""Tokens whose claims are right and whose signature, or the word about it, is not."""

import json
from collections.abc import Iterator
from typing import Any

from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from proofs.kit.idp.keys import SigningKey
from proofs.kit.jws import (
    assemble_token,
    decode_base64url,
    encode_base64url,
    encode_part,
    encode_public_key,
    make_hmac_signer,
    make_key_signer,
    make_signer,
    read_claims,
    read_header,
)

TokenCase = tuple[str, str]
_FLIPS = 6
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def generate_bad_signatures(
    token: str, key: SigningKey, others: tuple[SigningKey, ...], attacker: SigningKey, trap: str
) -> Iterator[TokenCase]:
    """`token` is good and signed by `key`; `others` are published beside it; `trap` is where attackers have keys."""
    header, claims = read_header(token), read_claims(token)
    yield from _generate_unsigned(token, header, claims)
    yield from _generate_shared_secrets(key, header, claims)
    yield from _generate_other_algorithms(token, key, others, header, claims)
    yield from _generate_key_ids(key, others, attacker, header, claims)
    yield from _generate_embedded_keys(attacker, header, claims, trap)
    yield from _generate_critical_headers(key, header, claims)
    yield from _generate_bit_flips(token)
    yield from _generate_respellings(token)
    yield from _generate_wrapped_tokens(token, key, header)
    if key.algorithm == "ES256":
        yield from _generate_curve_faults(token)


def _generate_unsigned(token: str, header: dict[str, Any], claims: dict[str, Any]) -> Iterator[TokenCase]:
    signature = token.rpartition(".")[2]
    for name in ("none", "None", "NONE", "nOnE", "", "null"):
        body = f"{encode_part({**header, 'alg': name})}.{encode_part(claims)}"
        yield f"alg: {name!r} without a signature", f"{body}."
        yield f"alg: {name!r} with the old signature", f"{body}.{signature}"
    for label, value in (("null", None), ("a list", ["none"]), ("a number", 0)):
        yield f"alg: {label}", f"{encode_part({**header, 'alg': value})}.{encode_part(claims)}.{signature}"
    header_without_alg = {name: value for name, value in header.items() if name != "alg"}
    yield "alg: missing", f"{encode_part(header_without_alg)}.{encode_part(claims)}.{signature}"
    yield "signature: stripped", token.rpartition(".")[0] + "."
    yield "signature: stripped with its dot", token.rpartition(".")[0]


def _generate_shared_secrets(key: SigningKey, header: dict[str, Any], claims: dict[str, Any]) -> Iterator[TokenCase]:
    for form, secret in encode_public_key(key).items():
        for algorithm in ("HS256", "HS384", "HS512") if form in ("pem", "der", "jwk") else ("HS256",):
            token = assemble_token({**header, "alg": algorithm}, claims, make_hmac_signer(algorithm, secret))
            yield f"alg: {algorithm} with the public key as secret ({form})", token


def _generate_other_algorithms(
    token: str, key: SigningKey, others: tuple[SigningKey, ...], header: dict[str, Any], claims: dict[str, Any]
) -> Iterator[TokenCase]:
    algorithms = {"RS256": ("RS384", "RS512", "PS256", "PS384", "PS512"), "ES256": (), "EdDSA": ()}[key.algorithm]
    for algorithm in algorithms:
        forgery = assemble_token({**header, "alg": algorithm}, claims, make_signer(key.private_key, algorithm))
        yield f"alg: {algorithm} with the key of {key.algorithm}", forgery
    signature = token.rpartition(".")[2]
    for name in (
        "RS256",
        "ES256",
        "EdDSA",
        "PS256",
        "RS384",
        "ES384",
        "ES512",
        "ES256K",
        "Ed25519",
        "Ed448",
        "rs256",
        "HS256",
    ):
        if name != key.algorithm:
            relabelled_token = f"{encode_part({**header, 'alg': name})}.{encode_part(claims)}.{signature}"
            yield f"alg: {key.algorithm} called {name}", relabelled_token
    for other in others:
        mismatch = assemble_token({**header, "alg": key.algorithm}, claims, make_key_signer(other))
        yield f"alg: {key.algorithm} said, {other.algorithm} done", mismatch


def _generate_key_ids(
    key: SigningKey,
    others: tuple[SigningKey, ...],
    attacker: SigningKey,
    header: dict[str, Any],
    claims: dict[str, Any],
) -> Iterator[TokenCase]:
    wrong: dict[str, Any] = {
        "a path": "../../../../dev/null", "a device": "/dev/null", "SQL": "' union select 'x' --", "a URL": "http://127.0.0.1/",
        "nobody's": "nobody", "a number": 1, "a list": [key.kid], "null and unsigned": None, "empty": "",
        "in capitals": key.kid.upper(), "with NUL": key.kid + "\0", "very long": "k" * 4000,
    }  # fmt: skip
    for label, kid in wrong.items():
        yield f"kid: {label}, attacker's key", _sign_with(attacker, {**header, "kid": kid}, claims)
    for other in others:
        yield f"kid: that of {other.algorithm}", _sign_with(key, {**header, "kid": other.kid}, claims)
    yield "kid: ours, attacker's key", _sign_with(attacker, header, claims)
    yield "kid: missing, attacker's key", _sign_with(attacker, {k: v for k, v in header.items() if k != "kid"}, claims)


def _sign_with(key: SigningKey, header: dict[str, Any], claims: dict[str, Any]) -> str:
    return assemble_token({**header, "alg": key.algorithm}, claims, make_key_signer(key))


def _generate_embedded_keys(
    attacker: SigningKey, header: dict[str, Any], claims: dict[str, Any], trap: str
) -> Iterator[TokenCase]:
    """The key to check with comes in the token, or from where the token says."""
    jwk = attacker.to_jwk(include_private=False)
    key_headers: dict[str, dict[str, Any]] = {
        "jwk": {"jwk": jwk}, "jwk with our kid": {"jwk": {**jwk, "kid": header.get("kid")}},
        "jku": {"jku": f"{trap}/jwks"},
        "x5u": {"x5u": f"{trap}/cert"}, "x5c": {"x5c": ["MIIB"]}, "x5t": {"x5t": "x", "x5t#S256": "x"},
        "a file": {"jku": "file:///dev/null"}, "issuer in the header": {"iss": trap},
    }  # fmt: skip
    for label, more in key_headers.items():
        yield f"key in the token: {label}", _sign_with(attacker, {**header, **more}, claims)
        own = {**header, "kid": attacker.kid, **more}
        yield f"key in the token: {label}, its own kid", _sign_with(attacker, own, claims)


def _generate_critical_headers(key: SigningKey, header: dict[str, Any], claims: dict[str, Any]) -> Iterator[TokenCase]:
    wrong: dict[str, dict[str, Any]] = {
        "unknown": {"crit": ["x"], "x": 1}, "exp": {"crit": ["exp"], "exp": 0}, "not a list": {"crit": "exp"},
        "empty": {"crit": []}, "absent name": {"crit": ["y"]}, "alg": {"crit": ["alg"]}, "null": {"crit": None},
        "b64": {"crit": ["b64"], "b64": False}, "b64 alone": {"b64": False}, "number inside": {"crit": [1]},
    }  # fmt: skip
    for label, more in wrong.items():
        yield f"crit: {label}", _sign_with(key, {**header, **more}, claims)


def _generate_bit_flips(token: str) -> Iterator[TokenCase]:
    """One bit of each part, in several places; never a bit that encodes nothing."""
    parts = token.split(".")
    for which, name in enumerate(("header", "claims", "signature")):
        part = parts[which]
        for step in range(_FLIPS):
            place = step * (len(part) - 2) // _FLIPS
            character = _ALPHABET[_ALPHABET.index(part[place]) ^ (1 << (step % 6))]
            token_parts = [*parts[:which], part[:place] + character + part[place + 1 :], *parts[which + 1 :]]
            yield f"damaged: {name}, character {place}", ".".join(token_parts)
    signature = decode_base64url(parts[2])
    others = {"one byte less": signature[:-1], "one byte more": signature + b"\0", "zeros": bytes(len(signature)),
              "ones": b"\xff" * len(signature), "half": signature[: len(signature) // 2], "twice": signature * 2,
              "reversed": signature[::-1], "a zero before": b"\0" + signature}  # fmt: skip
    for label, value in others.items():
        yield f"signature: {label}", f"{parts[0]}.{parts[1]}.{encode_base64url(value)}"


def _generate_respellings(token: str) -> Iterator[TokenCase]:
    """The same bytes, spelled differently: what has two names can be revoked under one and used under the other."""
    header, claims, signature = token.split(".")
    yield "spelling: padded signature", f"{token}="
    yield "spelling: padded twice", f"{token}=="
    yield "spelling: padded header", f"{header}=.{claims}.{signature}"
    yield "spelling: padded claims", f"{header}.{claims}=.{signature}"
    loose = _flip_padding_bits(signature)
    if loose is not None:
        yield "spelling: bits that encode nothing", f"{header}.{claims}.{loose}"
    usual = signature.replace("-", "+").replace("_", "/")
    if usual != signature:
        yield "spelling: the other alphabet", f"{header}.{claims}.{usual}"
    middle = len(signature) // 2
    yield "spelling: a space inside", f"{header}.{claims}.{signature[:middle]} {signature[middle:]}"
    yield "spelling: a tab inside", f"{header}.{claims[:9]}\t{claims[9:]}.{signature}"
    yield "spelling: quoted", f'"{token}"'
    yield "spelling: a fourth part", f"{token}.{signature}"
    yield "spelling: a dot before", f".{token}"
    yield "spelling: a dot after", f"{token}."
    yield "spelling: a comma and another", f"{token},{token}"
    yield "spelling: the word again", f"Bearer {token}"
    yield "spelling: percent", token.replace(".", "%2E")
    yield "spelling: capitals", token.swapcase()


def _flip_padding_bits(part: str) -> str | None:
    """The last character of most lengths has bits that belong to no byte."""
    loose = {2: 4, 3: 2}.get(len(part) % 4)
    if loose is None:
        return None
    return part[:-1] + _ALPHABET[_ALPHABET.index(part[-1]) ^ ((1 << loose) - 1)]


def _generate_wrapped_tokens(token: str, key: SigningKey, header: dict[str, Any]) -> Iterator[TokenCase]:
    yield "wrapped: a token as claims", assemble_token({**header, "cty": "JWT"}, token, make_key_signer(key))
    yield "wrapped: a token in a token", assemble_token(header, {"jwt": token}, make_key_signer(key))
    head, claims, signature = token.split(".")
    whole = {"protected": head, "payload": claims, "signature": signature}
    yield "wrapped: JSON form", json.dumps(whole, separators=(",", ":"))
    yield "wrapped: JSON form, encoded", encode_base64url(json.dumps(whole).encode())
    jwe_header = encode_part({"alg": "RSA-OAEP-256", "enc": "A256GCM", "kid": key.kid})
    yield "wrapped: sealed", ".".join((jwe_header, signature[:64], claims[:16], claims, signature[:22]))
    direct_header = encode_part({"alg": "dir", "enc": "A256GCM", "kid": key.kid})
    yield "wrapped: sealed directly", ".".join((direct_header, "", claims[:16], claims, signature[:22]))
    yield "wrapped: SD-JWT", f"{token}~"


def _generate_curve_faults(token: str) -> Iterator[TokenCase]:
    """Points and numbers that some verifiers of ECDSA let through."""
    head, claims, signature = token.split(".")
    raw = decode_base64url(signature)
    first, second = int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")
    der = encode_dss_signature(first, second)
    assert decode_dss_signature(der) == (first, second)
    yield "signature: as DER", f"{head}.{claims}.{encode_base64url(der)}"
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    for label, pair in (
        ("0, 0", (0, 0)),
        ("0, s", (0, second)),
        ("r, 0", (first, 0)),
        ("order, order", (order, order)),
    ):
        value = b"".join(number.to_bytes(32, "big") for number in pair)
        yield f"signature: ({label})", f"{head}.{claims}.{encode_base64url(value)}"
