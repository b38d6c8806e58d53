"""What a revocation ends: a user's tokens, an agent's part in any chain, and the tokens an agent got for itself."""

import pytest

from deputize.core.caller import Caller
from deputize.core.errors import AuthorityRevoked
from deputize.govern.identity.revocations import TenantRevocations, digest_name

pytestmark = pytest.mark.requirement("GOV-1")
BOT_REVOKED = TenantRevocations(epoch=4, agents=frozenset({"bot"}), since={("agent", "bot"): 4})


@pytest.mark.parametrize(
    "caller",
    [
        Caller(tenant="acme", user="bot"),
        Caller(tenant="acme", user="bot", agents=("helper",)),
        Caller(tenant="acme", user="ana", agents=("bot",)),
        Caller(tenant="acme", user="ana", agents=("helper", "bot")),
    ],
)
def test_revoking_an_agent_ends_its_own_tokens_and_its_part_in_every_chain(caller: Caller) -> None:
    with pytest.raises(AuthorityRevoked) as refusal:
        BOT_REVOKED.check(caller)
    assert refusal.value.details == {"kind": "agent"}


@pytest.mark.parametrize(
    "caller",
    [
        Caller(tenant="acme", user="bot", human=True),
        Caller(tenant="acme", user="ana"),
        Caller(tenant="acme", user="ana", agents=("helper",)),
    ],
)
def test_a_person_who_signed_in_is_not_revoked_by_the_name_of_an_agent(caller: Caller) -> None:
    BOT_REVOKED.check(caller)


def test_a_commit_before_the_revocation_of_the_agent_keeps_its_authority() -> None:
    BOT_REVOKED.check(Caller(tenant="acme", user="bot"), until=3)
    with pytest.raises(AuthorityRevoked):
        BOT_REVOKED.check(Caller(tenant="acme", user="bot"), until=4)


ANN_OF_B = "issuer=https://b.example ann"


@pytest.mark.parametrize("kind", ["users", "subjects"])
def test_a_bare_name_revokes_the_user_of_every_issuer(kind: str) -> None:
    revocations = TenantRevocations(**{kind: frozenset({"ann"})})  # type: ignore[arg-type]  # one of two fields
    for user in ("ann", ANN_OF_B):
        with pytest.raises(AuthorityRevoked):
            revocations.check(Caller(tenant="acme", user=user))


@pytest.mark.parametrize("kind", ["users", "subjects"])
def test_a_qualified_name_revokes_the_user_of_one_issuer(kind: str) -> None:
    names = {"primary_issuer": "https://a.example", kind: frozenset({ANN_OF_B})}
    of_b = TenantRevocations(**names)  # type: ignore[arg-type]  # one of two fields
    of_b.check(Caller(tenant="acme", user="ann"))
    with pytest.raises(AuthorityRevoked):
        of_b.check(Caller(tenant="acme", user=ANN_OF_B, agents=("bot",)))
    of_a = TenantRevocations(**{**names, kind: frozenset({"issuer=https://a.example ann"})})  # type: ignore[arg-type]  # see above
    of_a.check(Caller(tenant="acme", user=ANN_OF_B))
    with pytest.raises(AuthorityRevoked):
        of_a.check(Caller(tenant="acme", user="ann"))


@pytest.mark.parametrize("kind", ["users", "subjects"])
def test_a_digest_revokes_the_person_it_was_made_of_in_their_tenant_only(kind: str) -> None:
    values = {kind: frozenset({digest_name("acme", "ann"), digest_name("acme", ANN_OF_B)})}
    revocations = TenantRevocations(has_digests=True, **values)  # type: ignore[arg-type]  # one of two fields
    for user in ("ann", ANN_OF_B):
        with pytest.raises(AuthorityRevoked):
            revocations.check(Caller(tenant="acme", user=user))
    revocations.check(Caller(tenant="acme", user="bob"))
    revocations.check(Caller(tenant="beta", user="ann"))


@pytest.mark.parametrize(
    ("revocations", "kind"),
    [
        (TenantRevocations(grants=frozenset({"g1"})), "grant"),
        (TenantRevocations(grants=frozenset({"g2"})), "grant"),
        (TenantRevocations(tokens=frozenset({"t1"})), "token"),
        (TenantRevocations(tokens=frozenset({"t0"})), "token"),
    ],
)
def test_a_token_ends_with_any_delegation_or_token_behind_it(revocations: TenantRevocations, kind: str) -> None:
    delegated = Caller(
        tenant="acme", user="ana", agents=("a", "b"), grants=("g1", "g2"), token_id="t1", first_token="t0"
    )
    with pytest.raises(AuthorityRevoked) as refusal:
        revocations.check(delegated)
    assert refusal.value.details == {"kind": kind}
    revocations.check(Caller(tenant="acme", user="ana", token_id="t2"))
