"""A person signs in from the command line: in the browser, with a code, and with what was stored."""

import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.sign_in import browser_flow, device_flow, session
from deputize.interfaces.cli.client.sign_in.issuer_client import load_endpoints, load_login_offer
from deputize.interfaces.cli.client.target import find_gateway
from deputize.interfaces.cli.local import stored_tokens
from deputize.interfaces.cli.local.stored_tokens import (
    StoredToken,
    delete_token,
    load_token,
    lock_token,
    save_token,
)
from tests.support.scripted_issuer import CLIENT_ID, ScriptedIssuer, open_page, run_scripted_issuer


@pytest.fixture(scope="module")
def running_issuer() -> Iterator[ScriptedIssuer]:
    with run_scripted_issuer() as issuer:
        yield issuer


@pytest.fixture
def issuer(running_issuer: ScriptedIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedIssuer]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "_show_url", open_page)
    monkeypatch.setattr(session, "_has_browser", lambda: True)
    running_issuer.forms.clear()
    yield running_issuer
    running_issuer.refusals.clear()
    running_issuer.metadata = {}
    running_issuer.token_seconds = 3600


def test_the_browser_signs_in_and_the_token_is_for_this_gateway_only(issuer: ScriptedIssuer) -> None:
    token = session.sign_in(issuer.url)
    asked, exchanged = issuer.forms
    assert (asked["client_id"], asked["resource"], asked["scope"]) == (
        CLIENT_ID,
        issuer.audience,
        "openid offline_access notes:write",
    )
    assert asked["code_challenge_method"] == "S256"
    assert exchanged["redirect_uri"] == asked["redirect_uri"]
    save_token(token)
    assert find_gateway(issuer.url).token == token.access_token
    with pytest.raises(ConfigError, match=r"run deputize login --url http://127\.0\.0\.1:1,"):
        find_gateway("http://127.0.0.1:1")


def test_given_tokens_come_before_the_stored_one(issuer: ScriptedIssuer) -> None:
    save_token(session.sign_in(issuer.url))
    assert find_gateway(issuer.url, "given").token == "given"
    with pytest.raises(ConfigError, match="No token"):
        find_gateway(issuer.url, for_agent=True)


def test_a_token_for_decisions_is_asked_for_freshly_and_cannot_be_renewed(issuer: ScriptedIssuer) -> None:
    session.sign_in(issuer.url, for_approvals=True)
    assert (issuer.forms[0]["resource"], issuer.forms[0]["prompt"]) == ("urn:decide", "login")
    assert "offline_access" not in issuer.forms[0]["scope"]


def test_a_code_on_another_device_signs_in_after_the_pauses_the_issuer_asks_for(issuer: ScriptedIssuer) -> None:
    issuer.refusals = ["authorization_pending", "slow_down"]
    pauses: list[float] = []
    codes: list[tuple[str, str]] = []
    answer = device_flow.sign_in_with_code(
        load_endpoints(issuer.url),
        CLIENT_ID,
        issuer.audience,
        ["openid"],
        show_code=lambda url, code: codes.append((url, code)),
        sleep=pauses.append,
    )
    assert (codes, pauses) == ([(f"{issuer.url}/code", "WDJB-MJHT")], [1.0, 1.0, 6.0])
    assert answer["access_token"]
    issuer.refusals = ["access_denied"]
    with pytest.raises(ConfigError, match="access_denied"):
        device_flow.sign_in_with_code(
            load_endpoints(issuer.url),
            CLIENT_ID,
            issuer.audience,
            [],
            show_code=lambda *_: None,
            sleep=lambda _: None,
        )


def test_an_expired_token_is_renewed_or_says_what_to_do(issuer: ScriptedIssuer) -> None:
    expired = replace(session.sign_in(issuer.url), expires_at=int(time.time()) - 5)
    save_token(expired)
    renewed = session.find_stored_token(issuer.url)
    assert renewed not in (None, expired.access_token)
    assert issuer.forms[-1]["refresh_token"] == expired.refresh_token
    assert (load_token(issuer.url) or expired).refresh_token != expired.refresh_token
    save_token(expired)
    issuer.refusals = ["invalid_grant"]
    with pytest.raises(ConfigError, match=f"has expired: run deputize login --url {issuer.url}"):
        session.find_stored_token(issuer.url)


def test_a_stored_token_is_private_and_revoked_at_the_end(issuer: ScriptedIssuer) -> None:
    token = session.sign_in(issuer.url)
    file = Path(save_token(token))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_token(issuer.url)
    assert session.revoke_token(token)
    assert issuer.revoked_tokens == [token.refresh_token]
    delete_token(issuer.url)
    assert load_token(issuer.url) is None


def test_a_token_that_is_renewed_meanwhile_does_not_survive_signing_out(issuer: ScriptedIssuer) -> None:
    token = session.sign_in(issuer.url)
    renewed = replace(token, refresh_token="renewed")
    save_token(token)
    thread = Thread(target=session.sign_out, args=[issuer.url])
    with lock_token(issuer.url):
        thread.start()
        thread.join(1)
        save_token(renewed)
    thread.join(60)
    assert load_token(issuer.url) is None
    assert issuer.revoked_tokens[-1] == "renewed"


def test_a_token_that_is_renewed_meanwhile_does_not_replace_a_new_sign_in(issuer: ScriptedIssuer) -> None:
    token = session.sign_in(issuer.url)
    new_token = replace(token, refresh_token="of the new sign-in")
    thread = Thread(target=session.store_token, args=[new_token])
    with lock_token(issuer.url):
        thread.start()
        thread.join(1)
        save_token(token)
    thread.join(60)
    assert load_token(issuer.url) == new_token


@pytest.mark.parametrize("address", ["file:///etc/passwd", "javascript:alert(1)", "http://login.example/authorize"])
def test_a_browser_opens_no_address_but_one_over_tls(
    issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    opened_pages: list[str] = []
    monkeypatch.setattr(browser_flow, "_SIGN_IN_SECONDS", 1.0)
    endpoints = replace(load_endpoints(issuer.url), authorization=address)
    with pytest.raises(ConfigError, match="not an https address"):
        browser_flow.sign_in_with_browser(
            endpoints, CLIENT_ID, issuer.audience, ["openid"], prompt="", show_url=opened_pages.append
        )
    assert opened_pages == []


def test_a_gateway_with_another_name_gets_no_token(issuer: ScriptedIssuer) -> None:
    issuer.metadata = {"resource": "https://elsewhere.example"}
    with pytest.raises(ConfigError, match=r"says that it is https://elsewhere\.example"):
        load_login_offer(issuer.url)
    issuer.metadata = {"deputize_login": []}
    with pytest.raises(ConfigError, match="login_client_id"):
        load_login_offer(issuer.url)
    with pytest.raises(ConfigError, match="not an https address"):
        load_login_offer("http://gateway.example")


def test_a_code_of_another_issuer_is_not_sent_on(issuer: ScriptedIssuer) -> None:
    endpoints = load_endpoints(issuer.url)
    with pytest.raises(ConfigError, match="came from https://evil"):
        browser_flow._read_code({"code": "x", "iss": "https://evil.example"}, endpoints)
    with pytest.raises(ConfigError, match="access_denied"):
        browser_flow._read_code({"error": "access_denied", "iss": issuer.url}, endpoints)


class _Keyring:
    """A keyring as the library offers it."""

    priority = 5

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], str] = {}

    def get_keyring(self) -> "_Keyring":
        return self

    def get_password(self, service: str, name: str) -> str | None:
        return self.entries.get((service, name))

    def set_password(self, service: str, name: str, value: str) -> None:
        self.entries[service, name] = value

    def delete_password(self, service: str, name: str) -> None:
        del self.entries[service, name]


def test_a_keyring_holds_the_token_where_there_is_one(
    issuer: ScriptedIssuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring = _Keyring()
    monkeypatch.setattr(stored_tokens, "import_module", lambda name: keyring)
    token = StoredToken(
        gateway=issuer.url, issuer=issuer.url, client_id="c", audience="a", access_token="secret", expires_at=2**33
    )
    assert save_token(token) == "keyring"
    assert load_token(issuer.url) == token
    assert not any("secret" in file.read_text() for file in tmp_path.rglob("*.json"))
    delete_token(issuer.url)
    assert (load_token(issuer.url), keyring.entries) == (None, {})
