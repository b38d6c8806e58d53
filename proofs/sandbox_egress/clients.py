"""Programs that people use to reach hosts: each is a command, with arguments for the listed host and for another."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from proofs.sandbox_egress.sites import HELLO, HOST, PACKAGE

_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_NPM = Path("/usr/lib/node_modules/npm/bin/npm-cli.js")
_DEBIAN_NPM = Path("/usr/share/nodejs/npm/bin/npm-cli.js")
# It connects to the proxy by itself, as libraries of Node.js do; its own fetch reads HTTPS_PROXY only in newer ones.
_NODE_SCRIPT = """
const [http, tls, host] = [require('http'), require('tls'), process.argv[1]];
const proxy = new URL(process.env.HTTPS_PROXY);
http.request({host: proxy.hostname, port: proxy.port, method: 'CONNECT', path: host + ':443'})
  .on('connect', (answer, socket) => {
    if (answer.statusCode !== 200) { process.exit(1); }
    const secured = tls.connect({socket, servername: host, ALPNProtocols: ['http/1.1']}, () =>
      secured.write('GET /hello HTTP/1.1\\r\\nHost: ' + host + '\\r\\n\\r\\n'));
    secured.on('data', (part) => process.stdout.write(part)).on('error', () => process.exit(1));
  }).on('error', () => process.exit(1)).end();
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientCommand:
    """One client: its program, its arguments with `HOST` for the host, and a word of what it gets."""

    name: str
    words: tuple[str, ...]
    expected: str
    environment: dict[str, str]

    def build_words(self, host: str) -> list[str]:
        return [each.replace("HOST", host) for each in self.words]


def list_clients() -> list[ClientCommand]:
    """List the clients that this host has in the folders that sandboxes see."""
    npm = next((each for each in (_NPM, _DEBIAN_NPM) if each.exists()), _NPM)
    clients = [
        ("curl", ("/usr/bin/curl", "-sS", "--fail", "https://HOST/hello"), HELLO, {}),
        ("git", ("/usr/bin/git", "ls-remote", "https://HOST/repository.git"), "refs/heads/main", {}),
        ("git clone", ("/bin/sh", "-c", "git clone -q https://HOST/repository.git /tmp/r && git -C /tmp/r log"),
         HELLO, {}),
        ("pip", ("/usr/bin/python3", "-m", "pip", "download", "--no-cache-dir", "--dest", "/tmp/wheels",
                 "--disable-pip-version-check", "--retries", "0", "--index-url", "https://HOST/simple/", PACKAGE),
         "Successfully downloaded", {"PIP_CERT": _CERTIFICATES}),
        ("python", ("/usr/bin/python3", "-c",
                    "import urllib.request as r; print(r.urlopen('https://HOST/hello').read().decode())"), HELLO, {}),
        ("node", ("/usr/bin/node", "-e", _NODE_SCRIPT, "HOST"), HELLO, {"NODE_EXTRA_CA_CERTS": _CERTIFICATES}),
        ("npm", ("/usr/bin/node", str(npm), "install", "--prefix", "/tmp/site", "--no-audit", "--no-fund",
                 "--fetch-retries", "0", "--registry", "https://HOST/node/", PACKAGE),
         "added 1 package", {"NODE_EXTRA_CA_CERTS": _CERTIFICATES, "npm_config_cache": "/tmp/npm"}),
        ("wget", ("/usr/bin/wget", "-qO-", "--tries=1", "https://HOST/hello"), HELLO, {}),
    ]  # fmt: skip
    return [
        ClientCommand(name=name, words=words, expected=expected, environment=environment)
        for name, words, expected, environment in clients
        if _is_installed(name, words)
    ]


def _is_installed(name: str, words: tuple[str, ...]) -> bool:
    if name == "git clone":
        return Path("/usr/bin/git").exists()
    if name == "pip":
        return any(Path("/usr/lib/python3/dist-packages").glob("pip"))
    return shutil.which(words[0]) is not None and all(Path(each).exists() for each in words if each.endswith(".js"))


LISTED_HOST, OTHER_HOST = HOST, "other.example"
