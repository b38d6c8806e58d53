"""What npm and pip may do while they install a server: they reach their registry, and nothing of this host."""

import base64
import hashlib
import http.server
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.local.server_packages import InstalledServer, install_package, parse_package
from tests.support.sandbox_host import needs_sandboxes

pytestmark = [needs_sandboxes, pytest.mark.requirement("EXE-2")]
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")


class Registry:
    """A registry on loopback: bytes by path. It is asked without TLS, as one beside its users mostly is."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.asked: list[str] = []
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.asked.append(self.path)
                body = registry.pages.get(self.path.partition("?")[0])
                self.send_response(200 if body is not None else 404)
                is_json = body is not None and body[:1] == b"{"
                self.send_header("Content-Type", "application/json" if is_json else "text/html")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *args: Any) -> None: ...

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def add_npm(self, name: str, dependencies: dict[str, str], published: datetime) -> None:
        manifest: dict[str, Any] = {"name": name, "version": "1.0.0", "bin": "server.js", "dependencies": dependencies}
        manifest["scripts"] = {"postinstall": "touch /tmp/ran"}
        content = pack({"package/package.json": json.dumps(manifest), "package/server.js": "1"})
        path = f"/{name}/-/{name}-1.0.0.tgz"
        digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
        manifest["dist"] = {"tarball": f"{self.url}{path}", "integrity": f"sha512-{digest}"}
        document = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": manifest}}
        self.pages[path] = content
        self.pages[f"/{name}"] = json.dumps({**document, "time": {"1.0.0": published.isoformat()}}).encode()

    def add_wheel(self, name: str, metadata: str = "", files: dict[str, str] | None = None) -> None:
        info = f"{name}-1.0.dist-info"
        files = {
            f"{name}.py": "def main() -> None: ...\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{metadata}",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
            f"{info}/RECORD": "",
            **(files or {}),
        }
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as wheel:
            for path, text in files.items():
                wheel.writestr(path, text)
        file = f"{name}-1.0-py3-none-any.whl"
        self.pages[f"/files/{file}"] = buffer.getvalue()
        self.pages[f"/simple/{name}/"] = f'<a href="/files/{file}">{file}</a>'.encode()


def pack(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    registry = Registry()
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", f"{registry.url}/simple")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "127.0.0.1")
    monkeypatch.setenv("npm_config_registry", f"{registry.url}/")
    thread = threading.Thread(target=registry.server.serve_forever, daemon=True)
    thread.start()
    yield registry
    registry.server.shutdown()
    registry.server.server_close()
    thread.join()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that the user of sandboxes can get to, with the supervisor's beside it."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        monkeypatch.chdir(name)
        yield Path(name)


def install(package: str, folder: Path) -> InstalledServer:
    return install_package(parse_package(package), "notes", None, folder / "sandboxes")


@needs_npm
def test_a_package_is_installed_from_a_registry_beside_it(registry: Registry, folder: Path) -> None:
    now = datetime.now(UTC)
    registry.add_npm("helper", {}, now)
    registry.add_npm("notes-mcp", {"helper": "^1.0.0"}, now - timedelta(days=2, hours=1))
    installed = install("npm:notes-mcp", folder)
    assert installed.command == ("node", "servers/notes/node_modules/notes-mcp/server.js")
    assert Path("servers/notes/node_modules/helper/server.js").read_text() == "1"
    text, is_fresh = installed.describe_origin(now)
    assert is_fresh
    assert text.startswith("This version was published 2 days ago")
    assert not installed.describe_origin(now + timedelta(days=30))[1]


@needs_npm
def test_a_git_dependency_of_npm_runs_nothing_on_the_host(registry: Registry, folder: Path) -> None:
    ran = folder / "ran"
    for name, dependencies in (("inner", {}), ("outer", {"inner": f"git+file://{folder}/inner"})):
        repository = folder / name
        repository.mkdir()
        (repository / "package.json").write_text(
            json.dumps({"name": name, "version": "1.0.0", "scripts": {"prepare": "1"}, "dependencies": dependencies})
        )
        # The program that npm takes for git while it prepares this clone.
        (repository / ".npmrc").write_text("git=./evil.sh\n")
        (repository / "evil.sh").write_text(f'#!/bin/sh\ntouch {ran}\nexec git "$@"\n')
        (repository / "evil.sh").chmod(0o755)
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        for words in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-qm", "x")):
            subprocess.run(["git", *words], cwd=repository, check=True)
    registry.add_npm("notes-mcp", {"outer": f"git+file://{folder}/outer"}, datetime.now(UTC))
    with pytest.raises(ConfigError, match="it needs a package from git, an address or a folder"):
        install("npm:notes-mcp", folder)
    assert not ran.exists()


@needs_npm
@pytest.mark.parametrize("version", ["https://elsewhere.example/x.tgz", "file:../../../etc"])
def test_a_dependency_that_is_not_of_the_registry_is_refused(version: str, registry: Registry, folder: Path) -> None:
    registry.add_npm("notes-mcp", {"other": version}, datetime.now(UTC))
    with pytest.raises(ConfigError, match="was not installed: it"):
        install("npm:notes-mcp", folder)


def test_a_python_dependency_by_address_is_refused_and_runs_nothing_on_the_host(
    registry: Registry, folder: Path
) -> None:
    ran = folder / "ran"
    folder.chmod(0o777)
    setup = f"open({str(ran)!r}, 'w')\nfrom setuptools import setup\nsetup(name='evil', version='1.0')\n"
    info = "Metadata-Version: 1.0\nName: evil\nVersion: 1.0\n"
    registry.pages["/files/evil-1.0.tar.gz"] = pack({"evil-1.0/setup.py": setup, "evil-1.0/PKG-INFO": info})
    registry.add_wheel("notes", f"Requires-Dist: evil @ {registry.url}/files/evil-1.0.tar.gz\n")
    with pytest.raises(ConfigError, match=r"pypi:notes (was not|could not be) installed"):
        install("pypi:notes", folder)
    assert not ran.exists()


def test_nothing_of_a_python_package_runs_while_it_is_installed(registry: Registry, folder: Path) -> None:
    ran = folder / "ran"
    # Python executes this line whenever the interpreter of its environment starts.
    files = {"notes.pth": f"import pathlib; pathlib.Path({str(ran)!r}).touch()\n"}
    files["notes-1.0.data/data/bin/python"] = f"#!/bin/sh\ntouch {ran}\n"
    registry.add_wheel("notes", files=files)
    installed = install("pypi:notes", folder)
    assert (installed.version, installed.command) == ("1.0", ("servers/notes/bin/notes",))
    assert Path("servers/notes/bin/notes").read_text().startswith(f"#!{folder}/servers/notes/bin/python")
    assert not ran.exists()
    assert not list(Path("servers/notes/lib").glob("python*/site-packages/pip*"))
    assert Path("servers/notes/.gitignore").read_text() == "*\n"
    subprocess.run(["servers/notes/bin/python", "-c", ""], check=True)
    assert ran.exists(), "the package would have run, had its interpreter been started"


@needs_npm
def test_without_sandboxes_nothing_is_fetched(registry: Registry, folder: Path) -> None:
    (folder / "sandboxes").write_text("in the place of the supervisor's folder")
    registry.add_npm("notes-mcp", {}, datetime.now(UTC))
    with pytest.raises(ConfigError, match=r"run in a sandbox, and this host can start none.*deputize sandboxes check"):
        install("npm:notes-mcp", folder)
    assert registry.asked == []
