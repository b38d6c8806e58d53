"""A real OpenID provider in a process of its own, and people and agents who get their tokens from it the proper way.

People sign in with the authorization code flow and PKCE, through the provider's own pages for sign-in and consent;
agents use client credentials.
"""

import base64
import hashlib
import os
import re
import secrets
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import httpx2
import orjson

from proofs.kit.asgi_server import READY
from proofs.kit.child_process import ChildProcess
from proofs.kit.idp.install import get_node_path, install_package
from proofs.kit.idp.keys import SigningKey, generate_keys
from proofs.kit.sandbox import Sandbox

_SERVER = Path(__file__).resolve().with_name("server.mjs")
# Never listened on: the browser's last step is read from the redirect itself.
_CALLBACK = "http://127.0.0.1/callback"
_APP = "people"
_FORM = re.compile(r'<form[^>]+action="([^"]+)"')
_PROMPT = re.compile(r'name="prompt" value="(\w+)"')
_MOST_STEPS = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Resource:
    """Who a token is meant for, and how it is signed."""

    audience: str
    algorithm: str = "RS256"


@dataclass(frozen=True, kw_only=True, slots=True)
class IssuedTokens:
    """What one sign-in yields."""

    access_token: str
    id_token: str


@dataclass(kw_only=True, slots=True)
class Provider:
    """A running provider. `keys` are the ones it signs with now, the first of each algorithm before older ones."""

    issuer: str
    child: ChildProcess
    file: Path
    config: dict[str, Any]
    keys: tuple[SigningKey, ...]
    previous_keys: tuple[SigningKey, ...] = ()
    config_version: int = 1
    client: httpx2.AsyncClient = field(default_factory=lambda: httpx2.AsyncClient(trust_env=False, timeout=60.0))

    @classmethod
    async def start(
        cls,
        sandbox: Sandbox,
        *,
        resources: Mapping[str, Resource],
        accounts: Mapping[str, Mapping[str, Any]],
        agents: Sequence[str] = (),
        scopes: Sequence[str] = (),
        apps: Sequence[Mapping[str, Any]] = (),
        name: str = "idp",
        seconds: int = 3600,
    ) -> Self:
        """`accounts` holds the extra claims of every person and agent, `resources` whom tokens may be asked for, `apps`
        further clients that people sign in to, as the provider wants them described.
        """
        home = await install_package(sandbox)
        keys = generate_keys(f"{name}-1")
        issuer = f"http://127.0.0.1:{sandbox.pick_free_port()}"
        config = _build_config(issuer, resources, accounts, agents, scopes, seconds)
        config["people"] += apps
        file = sandbox.folder / f"{name}.json"
        _write_config(file, config, keys)
        child = await sandbox.start_process(
            name, [str(get_node_path(home)), str(_SERVER), str(file)], cwd=home, ready_line=READY
        )
        provider = cls(issuer=issuer, child=child, file=file, config=config, keys=keys)
        sandbox.add_cleanup(provider.client.aclose)
        return provider

    def get_key(self, algorithm: str = "RS256") -> SigningKey:
        return next(key for key in self.keys if key.algorithm == algorithm)

    async def rotate_keys(self, *, keep_old: bool) -> None:
        """New keys from now on; the ones before are still published, or are not."""
        self.previous_keys = self.keys
        self.config_version += 1
        self.keys = generate_keys(f"{self.file.stem}-{self.config_version}")
        _write_config(self.file, self.config, (*self.keys, *(self.previous_keys if keep_old else ())))
        os.kill(self.child.pid, signal.SIGHUP)
        await self.child.wait_for_line(f"reading {self.config_version}")

    async def request_agent_token(self, agent: str, resource: str, *scopes: str) -> str:
        """Client credentials: the agent itself, with no one behind it."""
        secret = next(each["client_secret"] for each in self.config["agents"] if each["client_id"] == agent)
        form = {"grant_type": "client_credentials", "resource": resource, "scope": " ".join(scopes)}
        answer = await self.client.post(f"{self.issuer}/token", data=form, auth=(agent, secret))
        return str(_parse_token_response(answer)["access_token"])

    async def sign_in(self, person: str, resource: str, *scopes: str) -> IssuedTokens:
        """One person, one browser: authorization request, sign-in, consent, code, token."""
        verifier = secrets.token_urlsafe(48)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        auth_request = {
            "client_id": _APP, "response_type": "code", "redirect_uri": _CALLBACK, "resource": resource,
            "scope": " ".join(("openid", *scopes)), "state": secrets.token_urlsafe(16),
            "code_challenge": challenge, "code_challenge_method": "S256",
        }  # fmt: skip
        async with create_browser(self.issuer) as browser:
            code = await _request_code(browser, person, auth_request)
            form = {
                "grant_type": "authorization_code", "code": code, "redirect_uri": _CALLBACK, "client_id": _APP,
                "code_verifier": verifier, "resource": resource,
            }  # fmt: skip
            tokens = _parse_token_response(await browser.post("/token", data=form))
        return IssuedTokens(access_token=tokens["access_token"], id_token=tokens["id_token"])


def create_browser(url: str) -> httpx2.AsyncClient:
    """With cookies of its own. Nothing here speaks TLS, and reading what would be needed for it takes longer than the
    sign-in.
    """
    return httpx2.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=60.0)


async def _request_code(browser: httpx2.AsyncClient, person: str, auth_request: Mapping[str, str]) -> str:
    target = await complete_sign_in(browser, await browser.get("/auth", params=dict(auth_request)), person, _CALLBACK)
    query = parse_qs(urlsplit(target).query)
    if query.get("state") != [auth_request["state"]] or "code" not in query:
        raise RuntimeError(f"the provider sent the browser back without a code: {query}")
    return query["code"][0]


async def complete_sign_in(browser: httpx2.AsyncClient, answer: httpx2.Response, person: str, callback_url: str) -> str:
    """A person signs in and agrees, page by page, from what the provider answered first; where they are sent then."""
    for _ in range(_MOST_STEPS):
        if answer.is_redirect:
            target = str(answer.url.join(answer.headers["location"]))
            if target.startswith(callback_url):
                return target
            answer = await browser.get(target)
            continue
        form, prompt = _FORM.search(answer.text), _PROMPT.search(answer.text)
        if answer.status_code != 200 or form is None or prompt is None:
            raise RuntimeError(f"the provider showed no form ({answer.status_code}): {answer.text[:500]}")
        form_data = {"prompt": prompt[1]} | ({"login": person, "password": "any"} if prompt[1] == "login" else {})
        answer = await browser.post(str(answer.url.join(form[1])), data=form_data)
    raise RuntimeError("the provider did not come to an end with this sign-in")


def _parse_token_response(answer: httpx2.Response) -> dict[str, Any]:
    if answer.status_code != 200:
        raise RuntimeError(f"the provider gave no token: {answer.status_code} {answer.text[:500]}")
    tokens: dict[str, Any] = answer.json()
    return tokens


def _build_config(
    issuer: str,
    resources: Mapping[str, Resource],
    accounts: Mapping[str, Mapping[str, Any]],
    agents: Sequence[str],
    scopes: Sequence[str],
    seconds: int,
) -> dict[str, Any]:
    people = {
        "client_id": _APP, "application_type": "native", "token_endpoint_auth_method": "none",
        "redirect_uris": [_CALLBACK], "grant_types": ["authorization_code"], "response_types": ["code"],
    }  # fmt: skip
    client_credentials = {"redirect_uris": [], "response_types": [], "grant_types": ["client_credentials"]}
    return {
        "issuer": issuer,
        "resources": {
            name: {"audience": each.audience, "algorithm": each.algorithm} for name, each in resources.items()
        },
        "accounts": accounts,
        "people": [people],
        "agents": [
            {"client_id": agent, "client_secret": secrets.token_urlsafe(32), **client_credentials} for agent in agents
        ],
        "scopes": list(scopes),
        "seconds": seconds,
        "cookie_key": secrets.token_urlsafe(32),
    }


def _write_config(file: Path, config: Mapping[str, Any], keys: Sequence[SigningKey]) -> None:
    file.write_bytes(orjson.dumps({**config, "jwks": {"keys": [key.to_jwk(include_private=True) for key in keys]}}))
    file.chmod(0o600)
