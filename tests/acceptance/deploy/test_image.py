"""The image holds what it names and nothing more, and runs where nothing can be written."""

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from tests.acceptance.deploy.containers import (
    DEPLOY,
    IMAGE,
    PROGRAMS,
    ROOT,
    BuiltImage,
    build_image,
    build_openid_image,
    build_postgres_image,
    run,
    write_configuration,
)

LIST_WRITABLE = """
import os
for folder, _, files in os.walk("/"):
    if not folder.startswith(("/proc", "/sys", "/dev")):
        for path in (folder, *(os.path.join(folder, name) for name in files)):
            if not os.path.islink(path) and os.access(path, os.W_OK):
                print(path)
"""
LIST_PROGRAMS = """
import os
for folder in ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin"):
    if os.path.isdir(folder):
        print(*(os.path.join(folder, name) for name in os.listdir(folder)), sep="\\n")
"""
BUILDS = [
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not all(map(shutil.which, PROGRAMS)), reason=f"needs {', '.join(PROGRAMS)}, which .ci/nightly installs"
    ),
]


def read_pins(file: Path) -> dict[str, str]:
    lines = (line.split()[0] for line in file.read_text().splitlines() if line and not line.startswith("#"))
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in (line.split("==") for line in lines)}


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_configuration(tmp_path_factory.mktemp("podman"))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> BuiltImage:
    return build_image(tmp_path_factory.mktemp("image"))


def run_python(script: str, env: dict[str, str]) -> list[str]:
    command = ("podman", "run", "--rm", "--network=none", "--entrypoint", '["python3.11", "-c"]', IMAGE, script)
    return run(*command, env=env).splitlines()


def test_the_image_has_the_versions_that_the_project_is_tested_with() -> None:
    constraints = read_pins(ROOT / "constraints.txt")
    requirements = read_pins(DEPLOY / "image/requirements.txt")
    requirements |= read_pins(DEPLOY / "image/requirements-sandboxes.txt")

    assert {name: constraints.get(name) for name in requirements} == requirements


class TestBuiltImage:
    pytestmark = BUILDS

    def test_two_builds_of_a_commit_have_one_digest(self, image: BuiltImage, tmp_path: Path) -> None:
        assert build_image(tmp_path).digest == image.digest

    def test_it_is_small(self, image: BuiltImage) -> None:
        assert image.archive.stat().st_size <= 90_000_000

    def test_it_has_no_shell_and_its_user_can_write_nothing(self, image: BuiltImage, env: dict[str, str]) -> None:
        assert run_python(LIST_WRITABLE, env) == []
        assert sorted(run_python(LIST_PROGRAMS, env)) == ["/usr/bin/python3.11", "/usr/local/bin/deputize"]
        assert run_python("import os; print(os.getuid(), os.getgid())", env) == ["65532 65532"]

    def test_its_sbom_names_every_wheel_and_package(self, image: BuiltImage, env: dict[str, str]) -> None:
        document = json.loads((image.folder / "sbom.cdx.json").read_text())
        found = {each["purl"].partition("?")[0] for each in document["components"]}
        wheels = read_pins(DEPLOY / "image/requirements.txt") | {"deputize": "0.2.0"}
        installed = run_python(
            "from importlib.metadata import distributions\nfor d in distributions(): print(d.name, d.version)", env
        )

        assert {f"pkg:pypi/{name}@{version}" for name, version in wheels.items()} <= found
        assert len(installed) == len(wheels)
        assert "pkg:deb/debian/libc6@" in "".join(found)
        assert sum("hashes" in each for each in document["components"]) == len(wheels) - 1  # all but Deputize itself

    def test_the_trial_makes_a_governed_call_and_the_gateway_stays_small(
        self, image: BuiltImage, env: dict[str, str], tmp_path: Path
    ) -> None:
        for build in (build_postgres_image, build_openid_image):
            (folder := tmp_path / build.__name__).mkdir()
            build(folder)
        run("python3", "-m", "venv", tmp_path / "venv")
        run(tmp_path / "venv/bin/pip", "install", "--quiet", "podman-compose==1.6.0")
        compose = (
            tmp_path / "venv/bin/podman-compose",
            "-f",
            DEPLOY / "compose.yaml",
            "--podman-run-args=--pull=never",
        )
        try:
            run(*compose, "up", "--detach", "--no-build", env=env)
            code = run("podman", "wait", "deputize-trial_call_1", env=env).strip()
            said = run("podman", "logs", "deputize-trial_call_1", env=env)
            assert (code, "✓ stock.count: 5" in said, "⏸ stock.order waits for" in said) == ("0", True, True), said
            gateway = run(
                "podman", "inspect", "--format", "{{.State.Pid}}", "deputize-trial_gateway_1", env=env
            ).strip()
            status = Path("/proc", gateway, "status").read_text()
            resident = re.search(r"VmRSS:\s+(\d+)", status)
            assert resident is not None
            assert int(resident[1]) * 1024 <= 200_000_000
            assert measure_restart(env) <= 5
        finally:
            run(*compose, "down", "--volumes", env=env)


class TestImageWithSandboxes:
    pytestmark = BUILDS

    def test_sandboxes_run_in_its_container(self, env: dict[str, str], tmp_path: Path) -> None:
        """As docs/how-to/run-sandboxes-in-production.md says; Docker names the last option systempaths=unconfined."""
        image = build_image(tmp_path, "sandboxes")
        assert image.archive.stat().st_size <= 150_000_000
        project = tmp_path / "project"
        project.mkdir()
        # Control groups of the container cannot be written.
        settings = '[builtin.code]\ntools = ["a.*"]\n[sandboxes]\naccept = ["weak_limits"]\n'
        (project / "deputize.toml").write_text(settings)
        options = ("unmask=ALL", "no-new-privileges", f"seccomp={DEPLOY / 'sandboxes/seccomp.json'}")
        words = ("podman", "run", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL")
        security = [f"--security-opt={each}" for each in options]
        shown = f"--volume={project}:/srv/deputize:ro"
        said = run(*words, *security, shown, f"{IMAGE}-sandboxes", "sandboxes", "check", env=env)
        assert "programs of code.run are in a sandbox" in said, said
        assert "Sandboxes work here" in said, said
        versions = run(*words, "--entrypoint", '["git", "--version"]', f"{IMAGE}-sandboxes", env=env)
        assert versions.startswith("git version")


def measure_restart(env: dict[str, str]) -> float:
    """Seconds from the start of the gateway's container until it is ready."""
    run("podman", "stop", "deputize-trial_gateway_1", env=env)
    check = (
        "import sys, time, urllib.request\nfor _ in range(600):\n"
        "    try: sys.exit(urllib.request.urlopen('http://127.0.0.1:7070/readyz').status != 200)\n"
        "    except OSError: time.sleep(0.05)\nsys.exit(1)"
    )
    began = time.monotonic()
    run("podman", "start", "deputize-trial_gateway_1", env=env)
    run("podman", "exec", "deputize-trial_gateway_1", "python3.11", "-c", check, env=env)
    return time.monotonic() - began
