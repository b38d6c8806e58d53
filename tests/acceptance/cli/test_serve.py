"""`deputize serve`, `migrate` and `doctor` as an operator meets them: nothing is made up, every gap is named."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.store.local import LocalPostgres
from deputize.store.migrate import newest_revision
from tests.acceptance.cli.shell import Running, deputize, make_project

ISSUER = "https://login.example.com/"


@dataclass(frozen=True, kw_only=True)
class Site:
    """A project with a database and an issuer of its own, as in production."""

    folder: Path
    key: Ed25519PrivateKey
    env: dict[str, str]

    def token(self, scope: str = "notes:write") -> str:
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": "deputize", "sub": "ana", "iat": now, "exp": now + 600, "scope": scope}
        return jwt.encode(claims, self.key, algorithm="EdDSA", headers={"kid": "k1"})


@pytest.fixture
def site(tmp_path: Path, postgres: LocalPostgres) -> Iterator[Site]:
    name = f"serve_{os.getpid()}_{time.monotonic_ns()}"
    postgres.sql(f"create database {name}", database="postgres")
    folder = make_project(tmp_path / "site")
    key = Ed25519PrivateKey.generate()
    public = {**jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "k1"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))
    with (folder / "deputize.toml").open("a") as file:
        file.write(
            f'\n[[identity.issuers]]\nissuer = "{ISSUER}"\naudience = "deputize"\n'
            'jwks_file = "jwks.json"\ntenant = "acme"\n'
        )
    env = {"DEPUTIZE_DATABASE__URL": postgres.dsn_for(name), "DEPUTIZE_TOOLS__TENANT": "acme"}
    yield Site(folder=folder, key=key, env=env)
    postgres.sql(f"drop database {name} with (force)", database="postgres")


def test_from_an_empty_database_to_a_served_call(site: Site) -> None:
    behind = deputize("serve", folder=site.folder, env=site.env)
    assert (behind.code, "run deputize migrate first" in behind.err) == (2, True)
    assert deputize("migrate", "--check", folder=site.folder, env=site.env).code == 1
    assert f"migrated: empty → {newest_revision()}" in deputize("migrate", folder=site.folder, env=site.env).out
    assert "is current" in deputize("migrate", "--check", folder=site.folder, env=site.env).out

    keyless = deputize("serve", folder=site.folder, env=site.env)
    assert (keyless.code, "openssl rand" in keyless.err) == (2, True)
    state = site.folder / ".deputize"
    state.mkdir()
    (state / "master.key").write_bytes(os.urandom(32))
    (state / "master.key").chmod(0o644)
    assert "chmod 600" in deputize("serve", folder=site.folder, env=site.env).err
    (state / "master.key").chmod(0o600)

    with Running("serve", "--json", folder=site.folder, env=site.env) as serving:
        url = json.loads(serving.until('{"event": "ready"'))["url"]
        good = deputize("call", "hello.greet", "name=Ana", "--url", url, "--token", site.token(), folder=site.folder)
        assert (good.code, good.out) == (0, '"Hello, Ana!"\n')
        development = deputize("token", folder=site.folder).out.strip()
        refused = deputize("call", "hello.greet", "name=Ana", "--url", url, "--token", development, folder=site.folder)
        assert (refused.code, "E3209" in refused.err) == (1, True)
        assert serving.interrupt() == 0


def test_the_doctor_warns_loudly_of_what_a_failover_would_lose(site: Site) -> None:
    deputize("migrate", folder=site.folder, env=site.env)
    done = deputize("doctor", "--json", folder=site.folder, env=site.env)
    found = {each["check"]: each for each in done.json["findings"]}

    assert found["synchronous replication"]["status"] == "warning"
    assert "LOSE ACKNOWLEDGED CALLS" in found["synchronous replication"]["todo"]
    assert found[f"issuer {ISSUER}"]["status"] == "good"
    assert found["schema"]["status"] == found["row-level security"]["status"] == "good"
    assert (found["master key"]["status"], done.code) == ("broken", 1)


@pytest.mark.requirement("GOV-3")
def test_the_doctor_says_whether_anybody_can_decide(site: Site) -> None:
    def approvals() -> tuple[str, str]:
        done = deputize("doctor", "--json", folder=site.folder, env=site.env)
        found = next(each for each in done.json["findings"] if each["check"] == "approvals")
        return found["status"], found["todo"]

    status, todo = approvals()
    assert (status, "console_audience" in todo) == ("warning", True)
    with (site.folder / "deputize.toml").open("a") as file:
        file.write('human = true\nconsole_audience = "deputize-console"\n')
    assert approvals() == ("good", "")


def test_a_tool_that_cannot_be_had_stops_the_start(site: Site) -> None:
    deputize("migrate", folder=site.folder, env=site.env)
    (site.folder / "tools" / "broken.py").write_text("import nowhere_to_be_found\n")
    done = deputize("serve", folder=site.folder, env=site.env)

    assert done.code == 2
    assert "nowhere_to_be_found" in done.err
    assert "nothing was started" in done.err


def test_the_development_issuer_is_refused(site: Site) -> None:
    with (site.folder / "deputize.toml").open("a") as file:
        file.write('\n[[identity.issuers]]\nissuer = "x"\naudience = "y"\ntenant = "z"\ndevelopment = true\n')
    done = deputize("serve", folder=site.folder, env=site.env)

    assert (done.code, "does not accept the development issuer" in done.err) == (2, True)
