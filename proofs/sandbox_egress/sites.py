"""The sites of the listed host: a page, redirects that lead elsewhere, a git repository, and two package indexes."""

import base64
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path

HELLO = "hello from the listed host"
HOST = "shop.example"
PACKAGE = "demo-of-the-proof"
_REDIRECTS = {
    "/to-metadata": "http://169.254.169.254/latest/meta-data/",
    "/to-another": "https://other.example/",
    "/to-another-port": f"https://{HOST}:8443/",
}


class Sites:
    """What each path of the listed host answers."""

    def __init__(self, folder: Path) -> None:
        self._pages: dict[str, tuple[str, bytes]] = {"/hello": ("text/plain", HELLO.encode())}
        self._add_repository(folder)
        self._add_python_index()
        self._add_node_index()

    def answer(self, host: str, path: str) -> bytes:
        """Answer a request; the other hosts have one page."""
        path = path.partition("?")[0]
        if host == HOST and path in _REDIRECTS:
            return _make_response("302 Found", "text/plain", b"", f"Location: {_REDIRECTS[path]}")
        if host == HOST and path in self._pages:
            return _make_response("200 OK", *self._pages[path])
        return _make_response("404 Not Found" if host == HOST else "200 OK", "text/plain", b"secret of another host")

    def _add_repository(self, folder: Path) -> None:
        """Serve a repository as files, which any web server can."""
        work, bare = folder / "work", folder / "repository.git"
        commit = ["-c", "user.name=A", "-c", "user.email=a@b", "commit", "--quiet", "--allow-empty", "--message", HELLO]
        for words in (
            ["init", "--quiet", "--initial-branch=main", str(work)],
            ["-C", str(work), *commit],
            ["clone", "--quiet", "--bare", str(work), str(bare)],
            ["-C", str(bare), "update-server-info"],
        ):
            subprocess.run(["git", *words], check=True, env={"PATH": "/usr/bin:/bin", "HOME": str(folder)})
        for each in bare.rglob("*"):
            if each.is_file():
                name = f"/repository.git/{each.relative_to(bare)}"
                self._pages[name] = ("application/octet-stream", each.read_bytes())

    def _add_python_index(self) -> None:
        name = PACKAGE.replace("-", "_")
        wheel = io.BytesIO()
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{name}.py", f"TEXT = {HELLO!r}\n")
            info = f"{name}-1.0.dist-info"
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        file = f"{name}-1.0-py3-none-any.whl"
        self._pages[f"/files/{file}"] = ("application/zip", wheel.getvalue())
        self._pages[f"/simple/{PACKAGE}/"] = ("text/html", f'<a href="/files/{file}">{file}</a>'.encode())

    def _add_node_index(self) -> None:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as package:
            described = json.dumps({"name": PACKAGE, "version": "1.0.0", "description": HELLO}).encode()
            member = tarfile.TarInfo("package/package.json")
            member.size = len(described)
            package.addfile(member, io.BytesIO(described))
        content = archive.getvalue()
        self._pages["/node/package.tgz"] = ("application/octet-stream", content)
        integrity = f"sha512-{base64.b64encode(hashlib.sha512(content).digest()).decode()}"
        release = {
            "name": PACKAGE,
            "version": "1.0.0",
            "dist": {"tarball": f"https://{HOST}/node/package.tgz", "integrity": integrity},
        }
        index = {"name": PACKAGE, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": release}}
        self._pages[f"/node/{PACKAGE}"] = ("application/json", json.dumps(index).encode())


def _make_response(status: str, kind: str, body: bytes, *headers: str) -> bytes:
    lines = (
        f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close", *headers
    )  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
