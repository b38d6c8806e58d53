"""Every bad token of the proof, made from real good ones, each with a name that says what is wrong with it.

Above: `proofs.confused_deputy`. Below: `bad_claims` and `bad_signatures`, a family of faults each.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from proofs.kit.bad_claims import bad_claims
from proofs.kit.bad_signatures import bad_signatures
from proofs.kit.idp.keys import SigningKey, new_keys
from proofs.kit.jws import assembled, claims_of, header_of, own_signer, part_of

_TOO_LONG = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Bad:
    """A token nobody may accept. One that is `elsewhere` is good for another tenant, and must reach nothing here; one
    that is `good_at` some doors is bad at all others.
    """

    label: str
    token: str
    elsewhere: bool = False
    good_at: frozenset[str] = frozenset()

    @property
    def family(self) -> str:
        return self.label.partition(":")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """What bad tokens are made from: good tokens by the algorithm of their signature, and the keys behind them."""

    keys: tuple[SigningKey, ...]
    good: dict[str, str]
    plain: dict[str, str]
    """Of somebody without any special right."""
    id_token: str
    delegated: str
    """A good token of the gateway's own issuer: a user's authority in an agent's hands."""
    trap: str
    attacker: tuple[SigningKey, ...] = field(default_factory=lambda: new_keys("attacker"))


def bad_tokens(material: Material) -> list[Bad]:
    made: list[Bad] = []
    for key in material.keys:
        good = material.good[key.algorithm]
        others = tuple(each for each in material.keys if each is not key)
        attacker = next(each for each in material.attacker if each.algorithm == key.algorithm)
        for label, token in (
            *bad_claims(key, claims_of(good)),
            *bad_signatures(good, key, others, attacker, material.trap),
        ):
            made.append(Bad(label=f"{label} [{key.algorithm}]", token=token))
    made += (Bad(label=label, token=token) for label, token in _no_tokens())
    made += (Bad(label=label, token=token) for label, token in _forged(material))
    return made


def _no_tokens() -> Iterator[tuple[str, str]]:
    odd = {
        "empty": "", "a variable": "${TOKEN}", "a variable in a token": "a.${TOKEN}.c", "null": "null", "a dot": ".",
        "two dots": "..", "three letters": "a.b.c", "undefined": "undefined", "a template": "{{ token }}",
        "NUL": "a\0b", "a star": "*", "a password": "admin:admin", "too long": "a" * _TOO_LONG,
        "too long, three parts": ".".join(["a" * 9000] * 3),
        "not ASCII": "\xe4\xf6\xfc.\xe4.\xf6", "an array": "[]", "true": "true",
    }  # fmt: skip
    return ((f"no token: {label}", token) for label, token in odd.items())


def _forged(material: Material) -> Iterator[tuple[str, str]]:
    """Delegations nobody made: our own tokens altered, and other people's that claim to be ours."""
    yield "typ: a real id token", material.id_token
    for algorithm, good in material.plain.items():
        header, _, signature = good.split(".")
        claims = claims_of(good)
        lent = {**claims, "act": {"sub": "agent-0"}}
        yield f"forged: act added, not signed again [{algorithm}]", f"{header}.{part_of(lent)}.{signature}"
        attacker = next(each for each in material.attacker if each.algorithm == algorithm)
        by_attacker = {**header_of(good), "kid": attacker.kid}
        yield f"forged: act signed by an unknown key [{algorithm}]", assembled(by_attacker, lent, own_signer(attacker))
        wide = {**claims, "scope": f"{claims.get('scope', '')} deputize:admin"}
        yield f"forged: scope widened [{algorithm}]", f"{header}.{part_of(wide)}.{signature}"
        moved = {**claims, "tenant": "beside"}
        yield f"forged: tenant changed [{algorithm}]", f"{header}.{part_of(moved)}.{signature}"
    yield from _of_ours(material)


def _of_ours(material: Material) -> Iterator[tuple[str, str]]:
    header, _, signature = material.delegated.split(".")
    claims = claims_of(material.delegated)
    stripped = {name: value for name, value in claims.items() if name != "act"}
    altered = {
        "act stripped": stripped,
        "act of another": {**claims, "act": {"sub": "agent-1"}},
        "act deeper": {**claims, "act": {"sub": "agent-9", "act": claims.get("act")}},
        "user of another": {**claims, "sub": "user-1"},
        "scope widened": {**claims, "scope": "deputize:admin proof:write"},
        "tools removed": {name: value for name, value in claims.items() if name != "tools"},
        "tools widened": {**claims, "tools": [{"tool_id": "*", "version_range": "*"}]},
        "tools emptied": {**claims, "tools": []},
        "life prolonged": {**claims, "exp": claims["exp"] + 86_400},
        "issuer of another tenant": {**claims, "iss": f"{str(claims['iss']).rpartition('/')[0]}/beside"},
        "issuer without a tenant": {**claims, "iss": str(claims["iss"]).partition("/t/")[0]},
        "audience changed": {**claims, "aud": "https://elsewhere.proof"},
        "grant removed": {name: value for name, value in claims.items() if "grant" not in name},
    }
    signing = {"a provider's key": material.keys, "an unknown key": material.attacker}
    for label, changed in altered.items():
        if changed != claims:
            yield f"ours, forged: {label}, not signed again", f"{header}.{part_of(changed)}.{signature}"
        for whose, keys in signing.items():
            for key in keys:
                said = {**header_of(material.delegated), "alg": key.algorithm}
                yield (
                    f"ours, forged: {label}, {whose} and our kid [{key.algorithm}]",
                    assembled(said, changed, own_signer(key)),
                )
                said["kid"] = key.kid
                yield (
                    f"ours, forged: {label}, {whose} and its kid [{key.algorithm}]",
                    assembled(said, changed, own_signer(key)),
                )
