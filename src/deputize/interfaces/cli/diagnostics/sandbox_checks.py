"""Start a real sandbox on this host, try to get out of it, and say what to change."""

import asyncio
import os
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Final, Literal

from deputize.core.settings import Settings
from deputize.execute.guarded_paths import list_guarded_paths
from deputize.execute.upstreams.program_files import list_folders
from deputize.interfaces.cli.diagnostics.finding import Finding
from deputize.runs.interpreter import InterpreterSandboxes
from deputize.runs.program_job import try_interpreter
from deputize.sandboxes.client import (
    SHARED_USER_ADVICE,
    SandboxClient,
    SandboxResult,
    SandboxUnavailable,
    find_default_folder,
)
from deputize.sandboxes.namespaces import ENVIRONMENT
from deputize.sandboxes.port import Backend, Ending, ResultFolder, SandboxSpec
from deputize.sandboxes.users import UserRange

_SECONDS: Final = 20.0
# Each is a test of the shell that succeeds if the way out is open.
_WAYS_OUT: Final = {
    "read a file of the host": 'grep -q . "$FILE"',
    "read the host's passwords": "grep -q . /etc/shadow",
    "read the gateway's environment": "tr '\\0' x < /proc/1/environ | grep -q .",
    "write into the base": ": > /usr/deputize-escaped",
    "write beside /tmp": ": > /escaped || : > /etc/escaped || : > /dev/escaped",
    "see processes of the host": '[ "$(ls -d /proc/[0-9]* | wc -l)" -gt 8 ]',
    # In a container the process of the gateway may have a number that the sandbox has, too.
    "signal a process of the host": '[ "$PROCESS" -gt 100 ] && kill -0 "$PROCESS"',
    "see a network": '[ "$(grep -c : /proc/net/dev)" -gt 1 ]',
    "connect to the host": 'bash -c "echo > /dev/tcp/127.0.0.1/$PORT"',
    "mount a file system": "mount -t tmpfs none /tmp",
    "make a user namespace": "unshare -U true",
    "have a capability": "grep -E '^Cap(Eff|Prm|Bnd):.*[1-9a-f]' /proc/self/status",
    "use a descriptor of the gateway": '[ "$(ls /proc/$$/fd | wc -l)" -gt 3 ]',
}
# On gVisor, the first process is the program's own, and so is the kernel that makes it namespaces.
_OPEN_ON_GVISOR: Final = frozenset({"read the gateway's environment", "make a user namespace"})
_INSTALL: Final = "Install it: apt-get install bubblewrap, or dnf install bubblewrap."
_INSTALL_GVISOR: Final = (
    "Install it: apt-get install runsc, from backports on Debian 12, or see https://gvisor.dev/docs/user_guide/install."
)
_ONLY_IF_DEMANDED: Final = "Needed only if a contract or a rule of the policies demands it."
_ALLOW_NAMESPACES: Final = (
    "Allow user namespaces: sysctl user.max_user_namespaces=10000 and, if it exists, "
    "kernel.unprivileged_userns_clone=1. On Ubuntu 23.10 or newer, write `profile bwrap /usr/bin/bwrap "
    "flags=(unconfined) { userns, }` into /etc/apparmor.d/bwrap, and run systemctl reload apparmor. In a container, "
    "its seccomp and AppArmor profiles must both allow them, and /proc must not be masked."
)
_ALLOW_GROUPS: Final = (
    "Start deputize sandboxes serve as root, or in a systemd unit with Delegate=yes; in Docker 28 or later use "
    '--security-opt writable-cgroups=true. Or accept it: accept = ["weak_limits"] in [sandboxes].'
)

_ACCEPT_UNSANDBOXED: Final = 'In production, accept = ["unsandboxed_code"] in [sandboxes] runs them without.'


def is_user_range(text: str) -> bool:
    """Tell whether a text is a range of users for sandboxes."""
    try:
        UserRange.parse(text)
    except ValueError:
        return False
    return True


def find_folder(settings: Settings) -> Path:
    """Find the folder of this host's supervisor."""
    return settings.sandboxes.folder or find_default_folder()


async def check_isolation(settings: Settings) -> list[Finding]:
    """Name the servers whose programs run without a sandbox; try one if something needs it."""
    programs = [each for each in settings.servers if each.command]
    exposed = [each.name for each in programs if not each.sandbox and "unsandboxed" not in each.accept_risk]
    findings = []
    if exposed:
        verb = "runs" if len(exposed) == 1 else "run"
        summary = f"{', '.join(exposed)} {verb} without a sandbox, with the files and the network of this host"
        todo = f'remove sandbox = false under [[servers]], or accept_risk = ["unsandboxed"] if you trust {exposed[0]}'
        findings.append(Finding(check="isolation", status="warning", summary=summary, todo=todo))
    findings += check_guarded_paths(settings)
    findings += _check_build_programs(settings)
    needs_sandboxes = (
        any(each.sandbox for each in programs)
        or any(each.kind == "commands" for each in settings.services)
        or settings.builtin.browser is not None
        or settings.builtin.build is not None
        or (settings.builtin.git is not None and not settings.accepts_weakness("unsandboxed_code"))
    )
    return findings + await (check_sandboxes(settings) if needs_sandboxes else check_interpreter(settings))


def _check_build_programs(settings: Settings) -> list[Finding]:
    """Name the commands of builds whose program is not on this host; a path in the project is each branch's own."""
    build = settings.builtin.build
    if build is None:
        return []
    path = {**ENVIRONMENT, **build.environment}["PATH"]
    missing = [
        f"build.{name} runs {command[0]}"
        for name, command in build.commands.items()
        if os.path.isabs(command[0]) or "/" not in command[0]
        if shutil.which(command[0], path=path) is None
    ]
    todo = "Install it where sandboxes see it, in /usr or a folder under [builtin.build], or correct the command."
    return [
        Finding(check="build", status="broken", summary=f"{each}, which was not found", todo=todo) for each in missing
    ]


def check_guarded_paths(settings: Settings) -> list[Finding]:
    """Name what stands deeper down in folders that servers change and is run outside: they could have made it."""
    writable = {path for each in settings.servers for folder, path in list_folders(each) if folder.write}
    left = [
        path
        for folder in sorted(writable)
        for path in list_guarded_paths(folder)
        if os.path.dirname(path) != folder or path in writable
    ]
    if not left:
        return []
    others = f" and {len(left) - 1} more" if len(left) > 1 else ""
    return [
        Finding(
            check="isolation",
            status="warning",
            summary=f"{left[0]}{others} is in a folder that a server may change, and git, editors or shells run it",
            todo="look at what you did not make before you work there, and remove it",
        )
    ]


async def check_sandboxes(settings: Settings) -> list[Finding]:
    """Try each backend that this host has, and the interpreter in a sandbox if programs run here."""
    findings = []
    for backend in Backend:
        # What this host lacks is a finding of its own, so it is tried whatever it lacks.
        client = SandboxClient(find_folder(settings), accept_weak_limits=True, accept_shared_user=True, backend=backend)
        try:
            findings += await _check_backend(client)
            if backend == settings.sandboxes.backend:
                findings += _report_limits(client, settings) + _report_user(client, settings)
        except SandboxUnavailable as error:
            is_needed = backend == settings.sandboxes.backend
            findings.append(
                Finding(
                    check=backend,
                    status="broken" if is_needed else "skipped",
                    summary=str(error),
                    todo=" ".join(filter(None, ("" if is_needed else _ONLY_IF_DEMANDED, _advise(str(error))))),
                )
            )
        finally:
            await client.aclose()
    return findings + await check_interpreter(settings)


async def check_interpreter(settings: Settings) -> list[Finding]:
    """Run a program in a sandbox, if `code.run` is on."""
    if settings.builtin.code is None:
        return []
    client = SandboxClient.from_settings(settings)
    try:
        reason = await asyncio.to_thread(try_interpreter, await InterpreterSandboxes(client).describe())
    except SandboxUnavailable as error:
        reason = str(error)
    finally:
        await client.aclose()
    if reason is None:
        return [Finding(check="interpreter", status="good", summary="programs of code.run are in a sandbox")]
    is_accepted = settings.accepts_weakness("unsandboxed_code")
    summary = f"programs of code.run {'run on their interpreter alone' if is_accepted else 'do not run'}: {reason}"
    todo = " ".join((_advise(reason), _ACCEPT_UNSANDBOXED)).strip()
    return [Finding(check="interpreter", status="warning" if is_accepted else "broken", summary=summary, todo=todo)]


async def _check_backend(client: SandboxClient) -> list[Finding]:
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        ways_out = _list_ways_out(client.backend)
        script = "\n".join(f'if ({test}) >/dev/null 2>&1; then echo "{way}"; fi' for way, test in ways_out.items())
        environment = {
            "FILE": _write_host_file(folder),
            "PROCESS": str(os.getpid()),
            "PORT": str(listener.getsockname()[1]),
        }
        # The supervisor enters the sandbox for what its program leaves there.
        left = ResultFolder(path="/out", size_bytes=4_096) if client.backend is Backend.NAMESPACES else None
        command = ("/bin/sh", "-c", script)
        result = await client.run(
            SandboxSpec(command=command, seconds=_SECONDS, environment=environment, result_folder=left)
        )
        if result.end.ending is not Ending.EXIT:
            return [_explain_failure(client.backend, result)]
        listener.settimeout(0)
        try:
            listener.accept()[0].close()
            was_connected = True
        except BlockingIOError:
            was_connected = False
    open_ways = [each for each in result.stdout.decode(errors="replace").splitlines() if each]
    if was_connected and "connect to the host" not in open_ways:
        open_ways.append("connect to the host")
    return [_report_ways(client.backend, open_ways)]


def _list_ways_out(backend: Backend) -> dict[str, str]:
    return {way: test for way, test in _WAYS_OUT.items() if backend is Backend.NAMESPACES or way not in _OPEN_ON_GVISOR}


def _write_host_file(folder: str) -> str:
    """Write a file that every user of the host can read."""
    Path(folder).chmod(0o755)
    file = Path(folder, "host.txt")
    file.write_text("of the host")
    return str(file)


def _report_ways(backend: Backend, open_ways: list[str]) -> Finding:
    if open_ways:
        todo = "Use no sandboxes on this host, and report this with the version of bubblewrap, runsc and the kernel."
        return Finding(check=backend, status="broken", summary=f"a program can {', '.join(open_ways)}", todo=todo)
    return Finding(check=backend, status="good", summary=f"{len(_list_ways_out(backend))} ways out, all closed")


def _report_limits(client: SandboxClient, settings: Settings) -> list[Finding]:
    if client.weak_limits is None:
        return [Finding(check="limits", status="good", summary="memory, processes and CPU by control groups")]
    is_accepted = settings.accepts_weakness("weak_limits")
    return [
        Finding(
            check="limits",
            status="warning" if is_accepted else "broken",
            summary=f"weak limits: {client.weak_limits}",
            todo=_ALLOW_GROUPS,
        )
    ]


def _report_user(client: SandboxClient, settings: Settings) -> list[Finding]:
    if client.shared_user is None:
        return [Finding(check="user", status="good", summary="each sandbox has a user of its own")]
    status: Literal["broken", "warning"] = "broken" if settings.environment == "production" else "warning"
    todo = f"{SHARED_USER_ADVICE[0].upper()}{SHARED_USER_ADVICE[1:]}."
    return [Finding(check="user", status=status, summary=client.shared_user, todo=todo)]


def _explain_failure(backend: Backend, result: SandboxResult) -> Finding:
    words = result.stderr.decode(errors="replace").strip()[-300:] or result.end.note or result.end.ending
    return Finding(check=backend, status="broken", summary=f"a sandbox cannot be started: {words}", todo=_advise(words))


def _advise(words: str) -> str:
    if "runsc" in words:
        return _INSTALL_GVISOR
    if "not installed" in words:
        return _INSTALL
    is_refused = any(each in words.lower() for each in ("permission", "permitted", "namespace"))
    return _ALLOW_NAMESPACES if is_refused else ""
