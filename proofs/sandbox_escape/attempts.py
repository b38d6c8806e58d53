"""Try one way out: run inside a sandbox, and without it as a control. Standard library alone, named by `argv[1]`.

`argv[2]` is the facts of the host as JSON. An attempt prints what it got, or writes, connects, signals or stays; the
host looks for that. What only the kernel could tell, a system call that was carried out, prints the word of the host.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER, NEW_MOUNT, NEW_PID, NEW_NET = 0x1000_0000, 0x0002_0000, 0x2000_0000, 0x4000_0000
NEW_IPC, NEW_UTS, NEW_CGROUP = 0x0800_0000, 0x0400_0000, 0x0200_0000
Facts = dict[str, Any]
# Printed first: an attempt that never began proves nothing.
BEGUN = "begun"


def call(number: int, *arguments: Any) -> int:
    """Make a system call of x86-64; raise OSError if it fails."""
    result = int(LIBC.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def unshare(flags: int) -> None:
    call(272, flags)


def show(value: object) -> None:
    print(value, flush=True)


def carried_out(facts: Facts) -> None:
    """Say that a system call was carried out, with the word that only an attempt knows."""
    show(facts["word"])


def in_child(step: Callable[[], object], facts: Facts) -> None:
    """Do a step in a child, and say so if it worked."""
    pid = os.fork()
    if pid == 0:
        try:
            step()
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(pid, 0)[1] == 0:
        carried_out(facts)


def with_sleeping_child(step: Callable[[int], object], facts: Facts) -> None:
    child = subprocess.Popen(["/bin/sleep", "20"])
    try:
        step(child.pid)
        carried_out(facts)
    finally:
        # `Popen.kill` takes a child that stops for its tracer for one that has ended, and it would stay stopped.
        os.kill(child.pid, signal.SIGKILL)


def read_text(path: str) -> None:
    show(Path(path).read_bytes()[:4_000].decode(errors="replace"))


def connect(family: int, kind: int, address: Any) -> None:
    with socket.socket(family, kind) as client:
        client.settimeout(3)
        client.connect(address)
        client.send(b"escaped")
        time.sleep(0.2)


def link_and_read(facts: Facts) -> None:
    link = f"/tmp/link-{os.getpid()}"
    os.symlink(facts["file"], link)
    try:
        read_text(link)
    finally:
        os.unlink(link)


def race_link(facts: Facts) -> None:
    """Swap a link between a harmless file and the host's while it is opened."""
    link, other, new = (f"/tmp/{name}-{os.getpid()}" for name in ("race", "harmless", "new"))
    Path(other).write_text("harmless")
    pid = os.fork()
    if pid == 0:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            for target in (other, facts["file"]):
                with contextlib.suppress(OSError):
                    os.symlink(target, new)
                    os.replace(new, link)
        os._exit(0)
    end = time.monotonic() + 1
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            text = Path(link).read_text()
            if text != "harmless":
                show(text)
                break
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def stay(facts: Facts) -> None:
    """Leave a process behind, in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for each in range(3):
                os.close(each)
            os.execv("/bin/sleep", [facts["daemon"], "600"])
        os._exit(0)
    os.wait()
    time.sleep(0.2)


def stay_by_forking(facts: Facts) -> None:
    """Fork without end, so that a kill always comes too late for one of the processes."""
    if os.fork() == 0:
        os.setsid()
        for each in range(3):
            os.close(each)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            if os.fork():
                os._exit(0)
        os.execv("/bin/sleep", [facts["daemon"], "600"])
    time.sleep(3.5)


def read_descriptors(facts: Facts) -> None:
    for number in range(3, 64):
        with contextlib.suppress(OSError):
            show(os.pread(number, 4_000, 0))


def read_launcher_environment(facts: Facts) -> None:
    for pid in {os.getppid(), 1, *(int(each) for each in os.listdir("/proc") if each.isdigit())} - {os.getpid()}:
        with contextlib.suppress(OSError):
            show(Path(f"/proc/{pid}/environ").read_bytes())


def write_shared_memory(facts: Facts) -> None:
    LIBC.shmat.restype = ctypes.c_void_p
    address = LIBC.shmat(LIBC.shmget(facts["key"], 0, 0), None, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError("shmat failed")
    ctypes.memmove(address, b"escaped", 7)


def require_done(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "failed")


def vmsplice(facts: Facts) -> None:
    reader, writer = os.pipe()
    buffer = ctypes.create_string_buffer(b"x" * 16)
    vector = struct.pack("PN", ctypes.addressof(buffer), 16)
    call(278, writer, vector, 1, 0)
    os.close(reader)
    carried_out(facts)


def list_host_names(facts: Facts) -> None:
    show(facts["word"] if len([each for each in os.listdir("/proc") if each.isdigit()]) > 8 else "few")


def count_interfaces(facts: Facts) -> None:
    show(facts["word"] if Path("/proc/net/dev").read_text().count(":") > 1 else "only lo")


def find_disks(facts: Facts) -> None:
    show(facts["word"] if any(stat.S_ISBLK(os.stat(f"/dev/{each}").st_mode) for each in os.listdir("/dev")) else "none")


def mount_in_new_namespace() -> None:
    unshare(NEW_USER | NEW_MOUNT)
    require_done(LIBC.mount(b"none", b"/tmp", b"tmpfs", 0, None))


def name_in_new_namespace() -> None:
    unshare(NEW_USER | NEW_UTS)
    socket.sethostname("escaped")


def root_in_new_namespace() -> None:
    unshare(NEW_USER)
    os.chroot("/tmp")


def join_own_child_namespace() -> None:
    descriptor = os.open("/proc/self/ns/user", os.O_RDONLY)
    unshare(NEW_USER | NEW_UTS)
    require_done(LIBC.setns(os.open("/proc/self/ns/uts", os.O_RDONLY), 0))
    os.close(descriptor)


def clone_namespace(facts: Facts) -> None:
    pid = call(56, NEW_USER | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    carried_out(facts)


def clone3_namespace(facts: Facts) -> None:
    arguments = struct.pack("<11Q", NEW_USER, 0, 0, 0, int(signal.SIGCHLD), 0, 0, 0, 0, 0, 0)
    pid = call(435, arguments, len(arguments))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    carried_out(facts)


def syscall_attempt(number: int, *arguments: Any) -> Callable[[Facts], None]:
    def attempt(facts: Facts) -> None:
        call(number, *arguments)
        carried_out(facts)

    return attempt


def child_attempt(step: Callable[[], object]) -> Callable[[Facts], None]:
    return lambda facts: in_child(step, facts)


def socket_attempt(family: int, kind: int, protocol: int = 0) -> Callable[[Facts], None]:
    def attempt(facts: Facts) -> None:
        socket.socket(family, kind, protocol).close()
        carried_out(facts)

    return attempt


def victim_attempt(step: Callable[[int], object]) -> Callable[[Facts], None]:
    def attempt(facts: Facts) -> None:
        step(facts["victim"])
        carried_out(facts)

    return attempt


BUFFER = ctypes.create_string_buffer(4_096)
ATTEMPTS: dict[str, Callable[[Facts], None]] = {
    # files
    "files: read": lambda facts: read_text(facts["file"]),
    "files: climb": lambda facts: read_text("/tmp/" + "../" * 20 + facts["file"]),
    "files: through the first process": lambda facts: read_text("/proc/1/root" + facts["file"]),
    "files: through a process of the host": lambda facts: read_text(f"/proc/{facts['victim']}/root{facts['file']}"),
    "files: through a link": link_and_read,
    "files: list": lambda facts: show(os.listdir(facts["folder"])),
    "files: sizes": lambda facts: show(facts["word"] if os.statvfs(facts["folder"]).f_blocks else ""),
    "files: users": lambda facts: show(facts["word"] if "root" in Path("/etc/passwd").read_text() else ""),
    "files: packages": lambda facts: show(facts["word"] if os.path.exists("/var/lib/dpkg/status") else ""),
    "files: services": lambda facts: show(facts["word"] if os.listdir("/run") else ""),
    "files: devices of the kernel": lambda facts: show(facts["word"] if os.listdir("/sys/class/net") else ""),
    "files: disks": find_disks,
    "files: create": lambda facts: Path(facts["folder"], "escaped").touch(),
    "files: append": lambda facts: show(os.write(os.open(facts["target"], os.O_APPEND | os.O_WRONLY), b"escaped")),
    "files: truncate": lambda facts: os.truncate(facts["target"], 0),
    "files: remove": lambda facts: os.unlink(facts["target"]),
    "files: rename": lambda facts: os.rename(facts["target"], facts["target"] + ".escaped"),
    "files: link": lambda facts: os.symlink("/escaped", facts["folder"] + "/escaped-link"),
    "files: pipe": lambda facts: os.mkfifo(facts["folder"] + "/escaped-pipe"),
    "files: folder": lambda facts: os.mkdir(facts["folder"] + "/escaped-folder"),
    "files: watch": lambda facts: show(
        facts["word"] if LIBC.inotify_add_watch(LIBC.inotify_init(), facts["folder"].encode(), 0xFFF) > 0 else ""
    ),
    "files: shared memory": lambda facts: read_text(facts["shared_file"]),
    # processes
    "processes: see": list_host_names,
    "processes: exists": victim_attempt(lambda pid: os.kill(pid, 0)),
    "processes: kill": lambda facts: os.kill(facts["victim"], signal.SIGKILL),
    "processes: command line": lambda facts: read_text(f"/proc/{facts['victim']}/cmdline"),
    "processes: environment": lambda facts: read_text(f"/proc/{facts['victim']}/environ"),
    "processes: memory map": victim_attempt(lambda pid: Path(f"/proc/{pid}/maps").read_bytes()),
    "processes: descriptors": victim_attempt(lambda pid: os.listdir(f"/proc/{pid}/fd")),
    "processes: handle": victim_attempt(os.pidfd_open),
    "processes: priority": victim_attempt(lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19)),
    "processes: processors": victim_attempt(lambda pid: os.sched_setaffinity(pid, {0})),
    "processes: limits": victim_attempt(lambda pid: call(302, pid, 7, None, BUFFER)),
    "processes: trace a child": lambda facts: with_sleeping_child(lambda pid: call(101, 16, pid, 0, 0), facts),
    "processes: memory of a child": lambda facts: with_sleeping_child(
        lambda pid: call(310, pid, struct.pack("PN", ctypes.addressof(BUFFER), 8), 1, b"\0" * 16, 0, 0), facts
    ),
    "processes: descriptor of a child": lambda facts: with_sleeping_child(
        lambda pid: call(438, os.pidfd_open(pid), 1, 0), facts
    ),
    "processes: stay": stay,
    # between processes
    "ipc: shared memory": write_shared_memory,
    "ipc: semaphores": lambda facts: show(facts["word"] if LIBC.semget(facts["key"], 1, 0) >= 0 else ""),
    "ipc: messages": lambda facts: show(facts["word"] if LIBC.msgget(facts["key"], 0) >= 0 else ""),
    "ipc: queue": syscall_attempt(240, b"deputize-escape", os.O_CREAT | os.O_RDWR, 0o600, None),
    "ipc: socket in a folder": lambda facts: connect(socket.AF_UNIX, socket.SOCK_STREAM, facts["socket"]),
    "ipc: socket by name": lambda facts: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + facts["name"]),
    "ipc: pipe in a folder": lambda facts: show(os.write(os.open(facts["pipe"], os.O_RDWR), b"escaped")),
    # network
    "network: interfaces": count_interfaces,
    "network: connect": lambda facts: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", facts["port"])),
    "network: connect over IPv6": lambda facts: connect(
        socket.AF_INET6, socket.SOCK_STREAM, ("::ffff:127.0.0.1", facts["port"])
    ),
    "network: datagram": lambda facts: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", facts["datagrams"])),
    "network: listen": socket_attempt(socket.AF_INET, socket.SOCK_STREAM),
    "network: echo": socket_attempt(socket.AF_INET6, socket.SOCK_DGRAM),
    "network: netlink": socket_attempt(socket.AF_NETLINK, socket.SOCK_RAW),
    "network: kernel crypto": socket_attempt(38, socket.SOCK_SEQPACKET),
    "network: virtual machines": socket_attempt(40, socket.SOCK_STREAM),
    # namespaces
    **{
        f"namespaces: {name}": child_attempt(lambda flags=flags: unshare(NEW_USER | flags))  # type: ignore[misc]
        for name, flags in (
            ("user", 0),
            ("mounts", NEW_MOUNT),
            ("processes", NEW_PID),
            ("network", NEW_NET),
            ("ipc", NEW_IPC),
            ("host name", NEW_UTS),
            ("control groups", NEW_CGROUP),
        )
    },
    "namespaces: mount": child_attempt(mount_in_new_namespace),
    "namespaces: new host name": child_attempt(name_in_new_namespace),
    "namespaces: root": child_attempt(root_in_new_namespace),
    "namespaces: join": child_attempt(join_own_child_namespace),
    "namespaces: clone": clone_namespace,
    "namespaces: clone3": clone3_namespace,
    # kernel
    "kernel: trace me": child_attempt(lambda: call(101, 0, 0, 0, 0)),
    "kernel: add a key": syscall_attempt(248, b"user", b"escape", b"x", 1, -3),
    "kernel: join a keyring": child_attempt(lambda: call(250, 1, 0)),
    "kernel: io_uring": syscall_attempt(425, 4, ctypes.create_string_buffer(256)),
    "kernel: user faults": syscall_attempt(323, 1),
    "kernel: open a tree": syscall_attempt(428, -100, b"/tmp", 0),
    "kernel: file handle": syscall_attempt(
        303, -100, b"/usr", struct.pack("<Ii", 128, 0) + b"\0" * 128, ctypes.create_string_buffer(8), 0
    ),
    "kernel: fixed addresses": child_attempt(lambda: call(135, 0x0040000)),
    "kernel: local descriptors": syscall_attempt(154, 0, BUFFER, 64),
    "kernel: splice memory": vmsplice,
    "kernel: clock": syscall_attempt(159, ctypes.create_string_buffer(256)),
    "kernel: watch all files": syscall_attempt(300, 0x200, 0),
    "kernel: memory policy": child_attempt(lambda: call(238, 0, None, 0)),
    "kernel: compare processes": syscall_attempt(312, os.getpid(), os.getpid(), 0, 1, 1),
    "kernel: secret memory": syscall_attempt(447, 0),
    "kernel: events of the processor": syscall_attempt(298, struct.pack("<II", 1, 128) + b"\0" * 120, 0, -1, -1, 0),
    # descriptors
    "descriptors: inherited": read_descriptors,
    "descriptors: environment of the launcher": read_launcher_environment,
    # races
    "races: swap a link": race_link,
    "races: fork before the kill": stay_by_forking,
}


def main() -> None:
    show(BEGUN)
    ATTEMPTS[sys.argv[1]](json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
