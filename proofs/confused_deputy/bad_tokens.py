"""Every bad token of the proof, made from real good ones, each with a name that says what is wrong with it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from proofs.confused_deputy.bad_claims import generate_bad_claims
from proofs.confused_deputy.bad_signatures import generate_bad_signatures
from proofs.kit.idp.keys import SigningKey, generate_keys
from proofs.kit.jws import assemble_token, encode_part, make_key_signer, read_claims, read_header

_TOO_LONG = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class BadToken:
    """A token no one may accept. One that is `elsewhere` is good for another tenant, and must reach nothing here; one
    that is `good_at` some interfaces is bad at all others.
    """

    label: str
    token: str
    is_foreign: bool = False
    valid_at: frozenset[str] = frozenset()

    @property
    def family(self) -> str:
        return self.label.partition(":")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenMaterial:
    """What bad tokens are made from: good tokens by the algorithm of their signature, and the keys behind them."""

    keys: tuple[SigningKey, ...]
    good_tokens: dict[str, str]
    plain_tokens: dict[str, str]
    """Of somebody without any special right."""
    id_token: str
    delegated_token: str
    """A good token of the gateway's own issuer: a user's authority in an agent's hands."""
    trap_url: str
    attacker: tuple[SigningKey, ...] = field(default_factory=lambda: generate_keys("attacker"))


def generate_bad_tokens(material: TokenMaterial) -> list[BadToken]:
    tokens: list[BadToken] = []
    for key in material.keys:
        good = material.good_tokens[key.algorithm]
        others = tuple(each for each in material.keys if each is not key)
        attacker = next(each for each in material.attacker if each.algorithm == key.algorithm)
        for label, token in (
            *generate_bad_claims(key, read_claims(good)),
            *generate_bad_signatures(good, key, others, attacker, material.trap_url),
        ):
            tokens.append(BadToken(label=f"{label} [{key.algorithm}]", token=token))
    tokens += (BadToken(label=label, token=token) for label, token in _generate_non_tokens())
    tokens += (BadToken(label=label, token=token) for label, token in _generate_forgeries(material))
    return tokens


def _generate_non_tokens() -> Iterator[tuple[str, str]]:
    odd = {
        "empty": "", "a variable": "${TOKEN}", "a variable in a token": "a.${TOKEN}.c", "null": "null", "a dot": ".",
        "two dots": "..", "three letters": "a.b.c", "undefined": "undefined", "a template": "{{ token }}",
        "NUL": "a\0b", "a star": "*", "a password": "admin:admin", "too long": "a" * _TOO_LONG,
        "too long, three parts": ".".join(["a" * 9000] * 3),
        "not ASCII": "\xe4\xf6\xfc.\xe4.\xf6", "an array": "[]", "true": "true",
    }  # fmt: skip
    return ((f"no token: {label}", token) for label, token in odd.items())


def _generate_forgeries(material: TokenMaterial) -> Iterator[tuple[str, str]]:
    """Delegations no one made: our own tokens altered, and other people's that claim to be ours."""
    yield "typ: a real id token", material.id_token
    for algorithm, good in material.plain_tokens.items():
        header, _, signature = good.split(".")
        claims = read_claims(good)
        act_claims = {**claims, "act": {"sub": "agent-0"}}
        yield f"forged: act added, not signed again [{algorithm}]", f"{header}.{encode_part(act_claims)}.{signature}"
        attacker = next(each for each in material.attacker if each.algorithm == algorithm)
        by_attacker = {**read_header(good), "kid": attacker.kid}
        yield (
            f"forged: act signed by an unknown key [{algorithm}]",
            assemble_token(by_attacker, act_claims, make_key_signer(attacker)),
        )
        wide = {**claims, "scope": f"{claims.get('scope', '')} deputize:admin"}
        yield f"forged: scope widened [{algorithm}]", f"{header}.{encode_part(wide)}.{signature}"
        moved_claims = {**claims, "tenant": "beside"}
        yield f"forged: tenant changed [{algorithm}]", f"{header}.{encode_part(moved_claims)}.{signature}"
    yield from _generate_own_forgeries(material)


def _generate_own_forgeries(material: TokenMaterial) -> Iterator[tuple[str, str]]:
    header, _, signature = material.delegated_token.split(".")
    claims = read_claims(material.delegated_token)
    claims_without_act = {name: value for name, value in claims.items() if name != "act"}
    variants = {
        "act stripped": claims_without_act,
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
    key_sets = {"a provider's key": material.keys, "an unknown key": material.attacker}
    for label, variant in variants.items():
        if variant != claims:
            yield f"ours, forged: {label}, not signed again", f"{header}.{encode_part(variant)}.{signature}"
        for whose, keys in key_sets.items():
            for key in keys:
                token_header = {**read_header(material.delegated_token), "alg": key.algorithm}
                yield (
                    f"ours, forged: {label}, {whose} and our kid [{key.algorithm}]",
                    assemble_token(token_header, variant, make_key_signer(key)),
                )
                token_header["kid"] = key.kid
                yield (
                    f"ours, forged: {label}, {whose} and its kid [{key.algorithm}]",
                    assemble_token(token_header, variant, make_key_signer(key)),
                )
