"""`deputize serve`, `migrate` and `doctor` as an operator meets them: nothing is made up, every gap is named."""

import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.store.local_postgres import LocalPostgres
from deputize.store.schema_revision import newest_revision
from tests.acceptance.cli.cli_process import BackgroundCommand, make_project, run_deputize
from tests.support.database_logins import DatabaseLogins, make_production_database

ISSUER = "https://login.example.com/"


@dataclass(frozen=True, kw_only=True)
class ServerProject:
    """A project with a database and an issuer of its own, as in production."""

    folder: Path
    key: Ed25519PrivateKey
    env: dict[str, str]
    migration_env: dict[str, str]
    logins: DatabaseLogins

    def sign_token(self, scope: str = "notes:write") -> str:
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": "deputize", "sub": "ana", "iat": now, "exp": now + 600, "scope": scope}
        return jwt.encode(claims, self.key, algorithm="EdDSA", headers={"kid": "k1"})


@pytest.fixture
def server_project(tmp_path: Path, postgres: LocalPostgres) -> Iterator[ServerProject]:
    folder = make_project(tmp_path / "site")
    key = Ed25519PrivateKey.generate()
    public = {**jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "k1"}
    (folder / "jwks.json").write_text(json.dumps({"keys": [public]}))
    with (folder / "deputize.toml").open("a") as file:
        file.write(
            f'\n[[identity.issuers]]\nissuer = "{ISSUER}"\naudience = "deputize"\n'
            'jwks_file = "jwks.json"\ntenant = "acme"\n'
        )
    with make_production_database(postgres) as logins:
        yield ServerProject(
            folder=folder,
            key=key,
            env={**logins.env, "DEPUTIZE_TOOLS__TENANT": "acme"},
            migration_env=logins.migration_env,
            logins=logins,
        )


def test_from_an_empty_database_to_a_served_call(server_project: ServerProject) -> None:
    behind = run_deputize("serve", folder=server_project.folder, env=server_project.env)
    assert (behind.code, "run deputize migrate first" in behind.err) == (2, True)
    assert run_deputize("migrate", "--check", folder=server_project.folder, env=server_project.env).code == 1
    assert (
        f"migrated: empty → {newest_revision()}"
        in run_deputize("migrate", folder=server_project.folder, env=server_project.migration_env).out
    )
    assert (
        "is up to date" in run_deputize("migrate", "--check", folder=server_project.folder, env=server_project.env).out
    )

    keyless = run_deputize("serve", folder=server_project.folder, env=server_project.env)
    assert (keyless.code, "openssl rand" in keyless.err) == (2, True)
    state = server_project.folder / ".deputize"
    assert state.stat().st_mode & 0o777 == 0o700
    (state / "master.key").write_bytes(os.urandom(32))
    (state / "master.key").chmod(0o644)
    assert "chmod 600" in run_deputize("serve", folder=server_project.folder, env=server_project.env).err
    (state / "master.key").chmod(0o600)

    with BackgroundCommand("serve", "--json", folder=server_project.folder, env=server_project.env) as serving:
        ready = json.loads(serving.wait_for_line('{"event": "ready"'))
        url = ready["url"]
        good = run_deputize(
            "call",
            "hello.greet",
            "name=Ana",
            "--url",
            url,
            "--token",
            server_project.sign_token(),
            folder=server_project.folder,
        )
        assert (good.code, good.out) == (0, '"Hello, Ana!"\n')
        # What is queued is executed: a worker is part of the command.
        assert (ready["worker"], ready["workers"]) == (True, 1)
        reach = ("--url", url, "--token", server_project.sign_token())
        queued = run_deputize("call", "hello.greet", "name=Ana", "--async", *reach, folder=server_project.folder)
        _watch_to_the_end(queued.output, reach, server_project.folder)
        development = run_deputize("token", folder=server_project.folder).out.strip()
        refused = run_deputize(
            "call", "hello.greet", "name=Ana", "--url", url, "--token", development, folder=server_project.folder
        )
        assert (refused.code, "E3209" in refused.err) == (1, True)
        assert serving.interrupt(signal.SIGTERM) == 0


@pytest.mark.nightly
def test_the_doctor_warns_loudly_of_what_a_failover_would_lose(server_project: ServerProject) -> None:
    run_deputize("migrate", folder=server_project.folder, env=server_project.migration_env)
    done = run_deputize("doctor", "--json", folder=server_project.folder, env=server_project.env)
    found = {each["check"]: each for each in done.json["findings"]}

    assert found["synchronous replication"]["status"] == "warning"
    assert "LOSE ACKNOWLEDGED CALLS" in found["synchronous replication"]["todo"]
    assert found[f"issuer {ISSUER}"]["status"] == "good"
    assert found["schema"]["status"] == found["row-level security"]["status"] == "good"
    assert (found["master key"]["status"], done.code) == ("broken", 1)


@pytest.mark.nightly
@pytest.mark.requirement("GOV-3")
def test_the_doctor_says_whether_anybody_can_decide(server_project: ServerProject) -> None:
    def approvals() -> tuple[str, str]:
        done = run_deputize("doctor", "--json", folder=server_project.folder, env=server_project.env)
        found = next(each for each in done.json["findings"] if each["check"] == "approvals")
        return found["status"], found["todo"]

    status, todo = approvals()
    assert (status, "console_audience" in todo) == ("warning", True)
    with (server_project.folder / "deputize.toml").open("a") as file:
        file.write('human = true\nconsole_audience = "deputize-console"\n')
    assert approvals() == ("good", "")


@pytest.mark.nightly
def test_a_tool_that_cannot_be_had_stops_the_start(server_project: ServerProject) -> None:
    run_deputize("migrate", folder=server_project.folder, env=server_project.migration_env)
    (server_project.folder / "tools" / "broken.py").write_text("import nowhere_to_be_found\n")
    done = run_deputize("serve", folder=server_project.folder, env=server_project.env)

    assert done.code == 2
    assert "nowhere_to_be_found" in done.err
    assert "Nothing was started" in done.err


@pytest.mark.nightly
def test_the_development_issuer_is_refused(server_project: ServerProject) -> None:
    with (server_project.folder / "deputize.toml").open("a") as file:
        file.write('\n[[identity.issuers]]\nissuer = "x"\naudience = "y"\ntenant = "z"\ndevelopment = true\n')
    done = run_deputize("serve", folder=server_project.folder, env=server_project.env)

    assert (done.code, "does not accept the development issuer" in done.err) == (2, True)


@pytest.mark.nightly
@pytest.mark.requirement("GOV-5")
def test_no_gateway_starts_with_a_login_that_could_rewrite_the_audit(server_project: ServerProject) -> None:
    run_deputize("migrate", folder=server_project.folder, env=server_project.migration_env)
    for dsn, power in (
        (server_project.logins.owner, "it is a superuser"),
        (server_project.logins.migrator, "it is a member of deputize_owner"),
    ):
        env = {**server_project.env, "DEPUTIZE_DATABASE__URL": dsn}
        for command in ("serve", "work"):
            refused = run_deputize(command, folder=server_project.folder, env=env)
            assert (refused.code, "could rewrite the audit" in refused.err, power in refused.err) == (2, True, True)
        found = _read_findings(server_project, env)
        assert found["login"]["status"] == found["audit is append-only"]["status"] == "broken"
        assert "update, delete" in found["audit is append-only"]["found"]
    both = {**server_project.env, **server_project.migration_env}
    assert "must not be able to read" in run_deputize("serve", folder=server_project.folder, env=both).err
    found = _read_findings(server_project, server_project.env)
    assert found["login"]["status"] == found["audit is append-only"]["status"] == "good"
    assert "tried and refused" in found["audit is append-only"]["found"]


@pytest.mark.nightly
def test_gateway_and_worker_apart_say_whether_a_worker_runs_and_execute_a_queued_call(
    server_project: ServerProject,
) -> None:
    run_deputize("migrate", folder=server_project.folder, env=server_project.migration_env)
    state = server_project.folder / ".deputize"
    state.mkdir(mode=0o700)
    (state / "master.key").write_bytes(os.urandom(32))
    (state / "master.key").chmod(0o600)
    folder, env = server_project.folder, server_project.env
    with BackgroundCommand("serve", "--no-worker", "--json", folder=folder, env=env) as serving:
        ready = json.loads(serving.wait_for_line('{"event": "ready"'))
        assert (ready["worker"], ready["workers"]) == (False, 0)
        reach = ("--url", ready["url"], "--token", server_project.sign_token())
        queued = run_deputize("call", "hello.greet", "name=Ana", "--async", *reach, folder=folder)
        assert (queued.code, "no worker is running" in queued.output) == (0, True), queued.output
        with urllib.request.urlopen(ready["url"] + "/readyz") as answer:
            workers = json.load(answer)["checks"][-1]
        assert (workers["name"], workers["ok"], workers["optional"]) == ("workers", False, True)
        # The port that both would use for their metrics is taken, as on a host where both run with one file.
        taken = {"DEPUTIZE_SERVER__METRICS_PORT": ready["metrics"].rpartition(":")[2].partition("/")[0]}
        with BackgroundCommand("work", folder=folder, env={**env, **taken}) as worker:
            worker.wait_for_line("! Port ")
            worker.wait_for_line("▶ executing")
            _watch_to_the_end(queued.output, reach, folder)


def _watch_to_the_end(output: str, reach: tuple[str, ...], folder: Path) -> None:
    call_id = next(word for word in output.split() if word.count("-") == 4)
    done = run_deputize("calls", "watch", call_id, *reach, folder=folder)
    assert (done.code, "succeeded" in done.output) == (0, True), done.output


def _read_findings(server_project: ServerProject, env: dict[str, str]) -> dict[str, dict[str, str]]:
    done = run_deputize("doctor", "--json", folder=server_project.folder, env=env)
    return {each["check"]: each for each in done.json["findings"]}


@pytest.mark.nightly
def test_a_planted_file_does_not_spare_a_worker_the_checks_of_production(tmp_path: Path, fresh_database: str) -> None:
    """Only the lock that a running `deputize dev` holds in the database does."""
    folder = make_project(tmp_path / "planted")
    (folder / ".deputize").mkdir(exist_ok=True)
    (folder / ".deputize" / "dev.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": os.getpid()}))
    refused = run_deputize("work", folder=folder, env={"DEPUTIZE_DATABASE__URL": fresh_database})
    assert (refused.code, "could rewrite the audit" in refused.err) == (2, True), refused.output
