"""Tokens signed as they should be whose claims no one may accept.

Each is signed by the real issuer's own key, so that only the claims can give it away.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

from proofs.kit.idp.keys import SigningKey
from proofs.kit.jws import assemble_token, make_key_signer

Claims = dict[str, Any]
TokenCase = tuple[str, str]
_MISSING = object()
_HOUR = 3600


def generate_bad_claims(key: SigningKey, good: Claims) -> Iterator[TokenCase]:
    """`good` are the claims of a token that is accepted; every one here differs from it in one thing."""
    changes = (
        _generate_audiences(good),
        _generate_issuers(good),
        _generate_times(),
        _generate_actors(),
        _generate_subjects(),
        _generate_tenants(good),
        _generate_authority(),
        _generate_key_bound(),
    )
    for family in changes:
        for label, change in family:
            claims = {name: value for name, value in {**good, **change}.items() if value is not _MISSING}
            yield label, _sign_claims(key, claims)
    yield from _generate_ambiguous_claims(key, good)
    yield from _generate_other_types(key, good)


def _sign_claims(key: SigningKey, claims: Claims | bytes, **headers: Any) -> str:
    header = {"alg": key.algorithm, "kid": key.kid, "typ": "at+jwt", **headers}
    return assemble_token(
        {name: value for name, value in header.items() if value is not _MISSING}, claims, make_key_signer(key)
    )


def _generate_audiences(good: Claims) -> Iterator[tuple[str, Claims]]:
    ours = str(good["aud"])
    other = "https://elsewhere.proof"
    wrong: dict[str, Any] = {
        "another": other, "a list without us": [other, "x"], "a prefix of ours": ours[:-1], "ours and more": ours + "0",
        "ours with a slash": ours + "/", "ours in capitals": ours.upper(), "ours with a space": f" {ours}",
        "a list in a list": [[ours]], "an object": {ours: True}, "two in one text": f"{ours} {other}",
        "ours, encoded": ours.replace(":", "%3A"), "ours with a fragment": ours + "#", "ours with a path": ours + "/v1",
        "a list of parts": list(ours), "the client": good.get("client_id", "people"), "every": "*", "empty": "",
        "an empty list": [], "null": None, "true": True, "number": 1, "missing": _MISSING,
        "a list with null": [None], "ours beside another": [ours, other],
        "the issuer": good["iss"], "ours over TLS": ours.replace("http:", "https:"),
    }  # fmt: skip
    return ((f"aud: {label}", {"aud": value}) for label, value in wrong.items())


def _generate_issuers(good: Claims) -> Iterator[tuple[str, Claims]]:
    ours = str(good["iss"])
    wrong: dict[str, Any] = {
        "with a slash": ours + "/", "in capitals": ours.upper(), "another": "https://elsewhere.proof",
        "a prefix": ours[:-1], "by name": ours.replace("127.0.0.1", "localhost"), "with a space": ours + " ",
        "with a user": ours.replace("://", "://x@"), "a list": [ours], "an object": {"iss": ours}, "null": None,
        "missing": _MISSING, "empty": "", "with NUL": ours + "\0", "the development issuer": "urn:deputize:development",
    }  # fmt: skip
    return ((f"iss: {label}", {"iss": value}) for label, value in wrong.items())


def _generate_times() -> Iterator[tuple[str, Claims]]:
    now = int(time.time())
    wrong: dict[str, Claims] = {
        "exp: an hour ago": {"exp": now - _HOUR}, "exp: half a minute ago": {"exp": now - 30}, "exp: zero": {"exp": 0},
        "exp: negative": {"exp": -1}, "exp: text": {"exp": str(now + _HOUR)}, "exp: a date": {"exp": "2999-01-01"},
        "exp: true": {"exp": True}, "exp: a list": {"exp": [now + _HOUR]}, "exp: missing": {"exp": _MISSING},
        "exp: null": {"exp": None}, "exp: 2^53": {"exp": 2**53}, "exp: 2^63": {"exp": 2**63},
        "exp: 10^400": {"exp": 10**400}, "exp: not a number": {"exp": float("nan")},
        "exp: infinity": {"exp": float("inf")}, "exp: far negative": {"exp": -1000 * now},
        "nbf: in an hour": {"nbf": now + _HOUR}, "nbf: text": {"nbf": str(now)},
        "nbf: not a number": {"nbf": float("nan")},
        "nbf: 2^53": {"nbf": 2**53}, "iat: in an hour": {"iat": now + _HOUR}, "iat: text": {"iat": str(now)},
        "iat: true": {"iat": True}, "iat: negative": {"iat": -1},
    }  # fmt: skip
    return iter(wrong.items())


def _nest_actors(depth: int) -> Claims:
    act: Claims = {"sub": "agent-last"}
    for number in range(depth - 1):
        act = {"sub": f"agent-{number}", "act": act}
    return act


def _generate_actors() -> Iterator[tuple[str, Claims]]:
    wrong: dict[str, Any] = {
        "text": "agent-1", "list": [{"sub": "agent-1"}], "number": 1, "true": True, "null": None, "empty": {},
        "no sub": {"client_id": "agent-1"}, "sub is empty": {"sub": ""}, "sub is a number": {"sub": 1},
        "sub is a list": {"sub": ["agent-1"]}, "sub with NUL": {"sub": "agent\0"},
        "sub with escape": {"sub": "a\x1b[2J"},
        "sub too long": {"sub": "a" * 5000}, "nine deep": _nest_actors(9), "sixty deep": _nest_actors(60),
        "300 deep": _nest_actors(300),
        "inner is text": {"sub": "agent-1", "act": "agent-2"}, "inner is null": {"sub": "agent-1", "act": None},
        "with authority inside": {"sub": "agent-1", "scope": "deputize:admin"},
    }  # fmt: skip
    return ((f"act: {label}", {"act": value}) for label, value in wrong.items())


def _generate_subjects() -> Iterator[tuple[str, Claims]]:
    wrong: dict[str, Any] = {
        "missing": _MISSING, "empty": "", "null": None, "number": 7, "list": ["user-1"], "object": {"sub": "user-1"},
        "with NUL": "user-1\0", "with a line break": "user-1\nadmin", "with escape": "user\x1b[31m",
        "with C1": "user\x85",
        "with DEL": "user\x7f", "too long": "u" * 5000, "half a surrogate": "user\ud800",
    }  # fmt: skip
    return ((f"sub: {label}", {"sub": value}) for label, value in wrong.items())


def _generate_tenants(good: Claims) -> Iterator[tuple[str, Claims]]:
    ours = str(good["tenant"])
    wrong: dict[str, Any] = {
        "missing": _MISSING, "null": None, "empty": "", "in capitals": ours.upper(), "with a space": ours + " ",
        "a list": [ours], "an object": {"id": ours}, "a path": f"../{ours}", "a glob": "*", "with NUL": ours + "\0",
        "a look-alike": ours.replace("a", "\N{CYRILLIC SMALL LETTER A}"), "two": f"{ours},beside", "too long": "t" * 64,
        "SQL": f"{ours}' or '1'='1", "true": True,
    }  # fmt: skip
    return ((f"tenant: {label}", {"tenant": value}) for label, value in wrong.items())


def _generate_authority() -> Iterator[tuple[str, Claims]]:
    wrong: dict[str, Claims] = {
        "scope: a number": {"scope": 1}, "scope: an object": {"scope": {"proof:write": True}},
        "scope: a list with a number": {"scope": ["proof:write", 1]}, "scope: with NUL": {"scope": "proof:write\0"},
        "scp: an object": {"scp": {"deputize:admin": True}}, "scope: one too long": {"scope": "s" * 5000},
        "tools: null": {"tools": None}, "tools: text": {"tools": "*"}, "tools: names": {"tools": ["deputy.look"]},
        "tools: an object": {"tools": {"deputy.look": "*"}}, "tools: no name": {"tools": [{"version_range": "*"}]},
        "tools: a number": {"tools": [{"tool_id": 1}]}, "tools: too many": {"tools": [{"tool_id": "a.b"}] * 300},
        "jti: a number": {"jti": 1}, "jti: with NUL": {"jti": "x\0"}, "jti: too long": {"jti": "j" * 5000},
        "sid: an object": {"sid": {}}, "sid: too long": {"sid": "s" * 5000},
    }  # fmt: skip
    return iter(wrong.items())


def _generate_key_bound() -> Iterator[tuple[str, Claims]]:
    """Tokens bound to a key of their holder: as bare bearers they are stolen ones."""
    thumbprint = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"
    yield "cnf: bound to a DPoP key", {"cnf": {"jkt": thumbprint}}
    yield "cnf: bound to a certificate", {"cnf": {"x5t#S256": thumbprint}}
    yield "cnf: bound to something", {"cnf": {"jwk": {"kty": "oct"}}}


def _generate_ambiguous_claims(key: SigningKey, good: Claims) -> Iterator[TokenCase]:
    """Claims that two readers may read in two ways."""
    text = json.dumps(good, separators=(",", ":"))
    twice = {"sub": "admin", "aud": "https://elsewhere.proof", "tenant": "beside", "exp": 1, "scope": "deputize:admin"}
    for name, value in twice.items():
        pair = f"{json.dumps(name)}:{json.dumps(value)}"
        yield f"twice: {name} first", _sign_claims(key, f"{{{pair},{text[1:]}".encode())
        escaped_pair = pair.replace(name[0], f"\\u{ord(name[0]):04x}", 1)
        yield f"twice: {name} escaped first", _sign_claims(key, f"{{{escaped_pair},{text[1:]}".encode())
    odd: dict[str, bytes] = {
        "two values": f"{text}{text}".encode(), "an array": f"[{text}]".encode(), "text": json.dumps(text).encode(),
        "nothing": b"", "null": b"null", "UTF-16": text.encode("utf-16"),
        "a byte order mark": b"\xef\xbb\xbf" + text.encode(),
        "broken UTF-8": text.encode().replace(b'"sub":"', b'"sub":"\xff\xfe'), "a comment": text.encode() + b"/**/",
        "single quotes": text.replace('"', "'").encode(), "a trailing comma": f"{text[:-1]},}}".encode(),
        "very deep": text[:-1].encode() + b',"x":' + b"[" * 1500 + b"]" * 1500 + b"}",
    }  # fmt: skip
    for label, claims in odd.items():
        yield f"claims: {label}", _sign_claims(key, claims)


def _generate_other_types(key: SigningKey, good: Claims) -> Iterator[TokenCase]:
    """Tokens of the same issuer, for us, that were made for something else than calling."""
    for typ in ("logout+jwt", "secevent+jwt", "dpop+jwt", "kb+jwt", "oauth-authz-req+jwt", "token-introspection+jwt",
                "client-authentication+jwt", "entity-statement+jwt", "JOSE+JSON", "at+jwt, id"):  # fmt: skip
        yield f"typ: {typ}", _sign_claims(key, good, typ=typ)
    for label, odd in (("a number", 1), ("null", None), ("a list", ["at+jwt"])):
        yield f"typ: {label}", _sign_claims(key, good, typ=odd)
    logout: Claims = {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}}
    yield "typ: a logout token in disguise", _sign_claims(key, {**good, **logout}, typ="JWT")
    id_token_claims = {"nonce": "n-0S6_WzA2Mj", "at_hash": "MTIzNDU2Nzg5MDEyMzQ1Ng"}
    yield "typ: an id token for us", _sign_claims(key, {**good, **id_token_claims}, typ=_MISSING)
