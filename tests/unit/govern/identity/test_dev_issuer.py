"""The development issuer: its key stays private, its tokens work in development, and `serve` refuses it."""

import asyncio
import stat
from pathlib import Path

import pytest

from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.errors import TokenSignatureInvalid
from deputize.core.settings import IdentitySettings, IssuerSettings, Settings
from deputize.govern.identity.dev_issuer import ISSUER, load_dev_issuer, mint_dev_token, reject_dev_issuers
from deputize.govern.identity.token_verifier import TokenVerifier


async def _fail_to_fetch(url: str) -> bytes:
    raise OSError(f"{url} is not to be fetched")


def _make_verifier(issuer: IssuerSettings) -> TokenVerifier:
    return TokenVerifier(IdentitySettings(issuers=(issuer,)), Clock(), _fail_to_fetch)


async def test_a_minted_token_has_all_requested_claims(tmp_path: Path) -> None:
    issuer = load_dev_issuer(tmp_path / ".deputize")
    minted = mint_dev_token(
        tmp_path / ".deputize",
        subject="ana",
        agent="bot",
        scopes=["crm:read", "deputize:admin"],
        tools={"crm.get_user": "^1"},
        tenant="shop",
        lifetime=60,
        session="s-1",
    )
    caller = await _make_verifier(issuer).verify_caller(minted.encode())
    assert (caller.tenant, caller.user, caller.agents) == ("shop", "ana", ("bot",))
    assert caller.is_admin
    assert caller.session == "s-1"
    assert caller.capabilities is not None
    assert caller.expires_at - caller.issued_at == 60


async def test_the_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    load_dev_issuer(tmp_path)
    (key,) = tmp_path.glob("*.pem")
    before = key.read_bytes()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    await _make_verifier(load_dev_issuer(tmp_path)).verify_caller(mint_dev_token(tmp_path).encode())
    assert key.read_bytes() == before


async def test_concurrent_creators_share_one_key(tmp_path: Path) -> None:
    issuers = await asyncio.gather(*(asyncio.to_thread(load_dev_issuer, tmp_path) for _ in range(8)))
    assert len(set(issuers)) == 1
    await _make_verifier(issuers[0]).verify_caller(mint_dev_token(tmp_path).encode())
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".pem"]


async def test_a_published_set_left_from_another_key_is_replaced(tmp_path: Path) -> None:
    load_dev_issuer(tmp_path / "one")
    load_dev_issuer(tmp_path / "two")
    name = "development-issuer.jwks.json"
    (tmp_path / "one" / name).write_bytes((tmp_path / "two" / name).read_bytes())
    await _make_verifier(load_dev_issuer(tmp_path / "one")).verify_caller(mint_dev_token(tmp_path / "one").encode())


async def test_another_projects_token_is_refused(tmp_path: Path) -> None:
    issuer = load_dev_issuer(tmp_path / "one")
    with pytest.raises(TokenSignatureInvalid):
        await _make_verifier(issuer).verify_caller(mint_dev_token(tmp_path / "two").encode())


def test_a_key_readable_by_others_is_refused_with_a_remedy(tmp_path: Path) -> None:
    load_dev_issuer(tmp_path)
    (key,) = tmp_path.glob("*.pem")
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        mint_dev_token(tmp_path)


def test_a_damaged_key_is_refused_with_a_remedy(tmp_path: Path) -> None:
    load_dev_issuer(tmp_path)
    (key,) = tmp_path.glob("*.pem")
    key.write_bytes(b"not a key")
    with pytest.raises(ConfigError, match="damaged"):
        mint_dev_token(tmp_path)


def test_an_invalid_tenant_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tenant"):
        mint_dev_token(tmp_path, tenant="Not A Tenant")


@pytest.mark.requirement("GOV-1")
def test_serve_refuses_the_development_issuer_in_any_form(tmp_path: Path) -> None:
    marked = load_dev_issuer(tmp_path)
    unmarked = marked.model_copy(update={"development": False})
    renamed = marked.model_copy(update={"issuer": "https://elsewhere.example"})
    for issuer in (marked, unmarked, renamed):
        with pytest.raises(ConfigError, match="deputize serve"):
            reject_dev_issuers(Settings(identity=IdentitySettings(issuers=(issuer,))))
    own = IssuerSettings(issuer="https://idp.example", audience="a", jwks_url="https://idp.example/k", tenant="t")
    reject_dev_issuers(Settings(identity=IdentitySettings(issuers=(own,))))
    assert marked.issuer == ISSUER
