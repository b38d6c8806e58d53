"""Make a network in which every address of the world is this machine, so that no connection can go unseen.

It is a network namespace with one route: all addresses are local. A listener on a port gets every connection to that
port, and the socket says to which address it was made. Names are resolved by a server of the proof, and certificates of
the proof's own authority are trusted; both through the files that the operating system reads, in a mount namespace.
"""

import fcntl
import os
import socket
import ssl
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

_SET_FLAGS, _IS_UP = 0x8914, 0x1
_NEW_ROUTE, _REQUEST_CREATE_ACKNOWLEDGE = 24, 0x405
_LOCAL_TABLE, _BOOT, _SCOPE_HOST, _TYPE_LOCAL, _OUTPUT_INTERFACE = 255, 3, 254, 2, 4


def build_command(argv: Sequence[str]) -> list[str]:
    """Build the command that runs a program in a network and a mount namespace of its own."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", "--net", "--mount", *as_root, *argv]


def claim_all_addresses() -> None:
    """Make every IPv4 and IPv6 address one of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH14x", b"lo", _IS_UP))
    for family in (socket.AF_INET, socket.AF_INET6):
        _add_local_route(family)


def _add_local_route(family: socket.AddressFamily) -> None:
    scope = _SCOPE_HOST if family == socket.AF_INET else 0
    route = struct.pack("BBBBBBBBI", family, 0, 0, 0, _LOCAL_TABLE, _BOOT, scope, _TYPE_LOCAL, 0)
    body = route + struct.pack("HHI", 8, _OUTPUT_INTERFACE, socket.if_nametoindex("lo"))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.bind((0, 0))
        netlink.send(struct.pack("IHHII", 16 + len(body), _NEW_ROUTE, _REQUEST_CREATE_ACKNOWLEDGE, 1, 0) + body)
        (code,) = struct.unpack("i", netlink.recv(65_536)[16:20])
    if code != 0:
        raise OSError(-code, f"the route for {family.name} was refused")


def replace_system_files(folder: Path, authority: bytes) -> None:
    """Let programs in this mount namespace resolve names at 127.0.0.1 and trust this authority alone."""
    names = folder / "resolv.conf"
    names.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n", encoding="ascii")
    _cover(names, Path("/etc/resolv.conf"))
    switch = folder / "nsswitch.conf"
    switch.write_text("hosts: files dns\n", encoding="ascii")
    _cover(switch, Path("/etc/nsswitch.conf"))
    trust = folder / "certificates"
    trust.mkdir()
    (trust / "ca-certificates.crt").write_bytes(authority)
    paths = ssl.get_default_verify_paths()
    _cover(trust / "ca-certificates.crt", Path(paths.openssl_cafile))
    _cover(trust, Path("/etc/ssl/certs"))


def _cover(source: Path, target: Path) -> None:
    """Mount a file or folder over another one, if that exists."""
    if target.exists():
        subprocess.run(["mount", "--bind", str(source), str(target.resolve())], check=True)
