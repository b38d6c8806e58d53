"""The development issuer: its key stays private, its tokens work here, and `serve` refuses it."""

import asyncio
import stat
from pathlib import Path

import pytest

from deputize.core.clock import Clock
from deputize.core.errors import TokenSignature
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Identity, Issuer, Settings
from deputize.govern.identity.development import ISSUER, development_issuer, mint, refuse_development_issuers
from deputize.govern.identity.tokens import TokenVerifier


async def _nothing(url: str) -> bytes:
    raise OSError(f"{url} is not to be fetched")


def _verifier(issuer: Issuer) -> TokenVerifier:
    return TokenVerifier(Identity(issuers=(issuer,)), Clock(), _nothing)


async def test_a_minted_token_is_accepted_with_everything_asked_for(tmp_path: Path) -> None:
    issuer = development_issuer(tmp_path / ".deputize")
    minted = mint(
        tmp_path / ".deputize",
        subject="ana",
        agent="bot",
        scopes=["crm:read", "deputize:admin"],
        tools={"crm.get_user": "^1"},
        tenant="shop",
        lifetime=60,
        session="s-1",
    )
    caller = await _verifier(issuer).verify(minted.encode())
    assert (caller.tenant, caller.user, caller.agents) == ("shop", "ana", ("bot",))
    assert caller.is_admin
    assert caller.session == "s-1"
    assert caller.capabilities is not None
    assert caller.expires_at - caller.issued_at == 60


async def test_the_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    development_issuer(tmp_path)
    (key,) = tmp_path.glob("*.pem")
    before = key.read_bytes()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    await _verifier(development_issuer(tmp_path)).verify(mint(tmp_path).encode())
    assert key.read_bytes() == before


async def test_makers_at_once_agree_on_one_key(tmp_path: Path) -> None:
    issuers = await asyncio.gather(*(asyncio.to_thread(development_issuer, tmp_path) for _ in range(8)))
    assert len(set(issuers)) == 1
    await _verifier(issuers[0]).verify(mint(tmp_path).encode())
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".pem"]


async def test_a_published_set_left_from_another_key_is_replaced(tmp_path: Path) -> None:
    development_issuer(tmp_path / "one")
    development_issuer(tmp_path / "two")
    name = "development-issuer.jwks.json"
    (tmp_path / "one" / name).write_bytes((tmp_path / "two" / name).read_bytes())
    await _verifier(development_issuer(tmp_path / "one")).verify(mint(tmp_path / "one").encode())


async def test_another_projects_token_is_refused(tmp_path: Path) -> None:
    issuer = development_issuer(tmp_path / "one")
    with pytest.raises(TokenSignature):
        await _verifier(issuer).verify(mint(tmp_path / "two").encode())


def test_a_key_others_can_read_is_refused_with_the_way_out(tmp_path: Path) -> None:
    development_issuer(tmp_path)
    (key,) = tmp_path.glob("*.pem")
    key.chmod(0o644)
    with pytest.raises(Misconfigured, match="chmod 600"):
        mint(tmp_path)


def test_a_damaged_key_is_refused_with_the_way_out(tmp_path: Path) -> None:
    development_issuer(tmp_path)
    (key,) = tmp_path.glob("*.pem")
    key.write_bytes(b"not a key")
    with pytest.raises(Misconfigured, match="damaged"):
        mint(tmp_path)


def test_a_tenant_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="tenant"):
        mint(tmp_path, tenant="Not A Tenant")


@pytest.mark.requirement("GOV-1")
def test_serve_refuses_the_development_issuer_however_it_is_written_down(tmp_path: Path) -> None:
    marked = development_issuer(tmp_path)
    unmarked = marked.model_copy(update={"development": False})
    renamed = marked.model_copy(update={"issuer": "https://elsewhere.example"})
    for issuer in (marked, unmarked, renamed):
        with pytest.raises(Misconfigured, match="deputize serve"):
            refuse_development_issuers(Settings(identity=Identity(issuers=(issuer,))))
    own = Issuer(issuer="https://idp.example", audience="a", jwks_url="https://idp.example/k", tenant="t")
    refuse_development_issuers(Settings(identity=Identity(issuers=(own,))))
    assert marked.issuer == ISSUER
