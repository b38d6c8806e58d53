"""Make hostile URLs: addresses in every notation, names that lead to them, tricks of URL syntax, and redirects."""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from proofs.kit.name_server import NameServer
from proofs.ssrf.judge import PUBLIC_ADDRESS

PRIVATE = ("127.0.0.1", "10.0.0.5", "192.168.1.1", "172.16.0.9", "100.64.0.7")
# Addresses that no setting allows: link-local ones, and the metadata services of clouds.
NEVER = ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192")
_OTHER_PRIVATE = (
    "127.9.8.7", "198.18.0.1", "192.0.2.1", "198.51.100.1", "203.0.113.1", "192.88.99.1", "240.0.0.1", "[::1]",
    "[0:0:0:0:0:0:0:1]", "[fc00::1]", "[fd12:3456:789a::1]", "[fec0::1]", "[100::1]", "[2001:db8::1]", "[3fff::1]",
    "[5f00::1]", "[4000::1]", "localhost", "LOCALHOST", "localhost.", "ip6-localhost", "loopback.localhost",
)  # fmt: skip
_OTHER_NEVER = (
    "0.0.0.0", "0", "0x0", "[::]", "[::0.0.0.0]", "224.0.0.1", "239.255.255.250", "255.255.255.255", "[ff02::1]",
    "[fe80::1]", "[fe80::a9fe:a9fe%25lo]", "[fd00:ec2::254]", "[fd00:ec2::23]", "[fd20:ce::254]", "[fd00:42::42]",
)  # fmt: skip
_METADATA_NAMES = ("metadata.google.internal", "metadata", "instance-data.ec2.internal", "metadata.azure.internal")
_STATUSES = ("301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect")
_FULL_WIDTH = {ord(each): ord(each) + 0xFEE0 for each in "0123456789."}
_CIRCLED = {ord(each): 0x245F + int(each) for each in "123456789"}


@dataclass(frozen=True, slots=True)
class HostileUrl:
    """A URL that must lead to no connection. `is_never` says that no operator can allow its host.

    A redirect has a path in place of a URL: it is on every site of the proof, and its first hop may be connected to.
    """

    kind: str
    url: str
    is_never: bool = False

    @property
    def is_path(self) -> bool:
        """True for a path of the proof's own sites."""
        return self.url.startswith("/") and not self.url.startswith("//")


class Redirects:
    """What the paths of the proof's own sites answer with."""

    def __init__(self) -> None:
        self._targets: list[tuple[str, str]] = []

    def add(self, location: str, status: str = _STATUSES[1], header: str = "Location") -> str:
        """Add a redirect and return its path."""
        self._targets.append((status, f"{header}: {location}"))
        return f"/redirect/{len(self._targets) - 1}"

    def find(self, path: str) -> tuple[str, str] | None:
        """Find status and header of a path."""
        number = path.partition("?")[0].partition("/redirect/")[2].partition("/")[0]
        return self._targets[int(number)] if number.isdigit() and int(number) < len(self._targets) else None


def list_notations(address: str) -> Iterator[tuple[str, str]]:
    """List ways to write an IPv4 address as a host, each with its kind."""
    number, parts = int(ipaddress.IPv4Address(address)), [int(each) for each in address.split(".")]
    high, low = f"{number >> 16:x}", f"{number & 0xFFFF:x}"
    yield "dotted", address
    yield "decimal", str(number)
    yield "hex", f"0x{number:x}"
    yield "hex", f"0X{number:08X}"
    yield "octal", f"0{number:o}"
    yield "dotted octal", ".".join(f"0{each:o}" for each in parts)
    yield "dotted octal", ".".join(f"{each:04o}" for each in parts)
    yield "dotted hex", ".".join(f"0x{each:x}" for each in parts)
    yield "mixed", f"{parts[0]}.0x{parts[1]:x}.0{parts[2]:o}.{parts[3]}"
    yield "short", f"{parts[0]}.{parts[1] << 16 | parts[2] << 8 | parts[3]}"
    yield "short", f"{parts[0]}.{parts[1]}.{parts[2] << 8 | parts[3]}"
    yield "trailing dot", f"{address}."
    yield "other digits", address.translate(_FULL_WIDTH)
    yield "other digits", address.translate(_CIRCLED)
    yield "other digits", address.replace(".", "。")
    yield "percent-encoded", address.replace(".", "%2e")
    yield "percent-encoded", "".join(f"%{ord(each):02x}" for each in address)
    yield "IPv4-mapped", f"[::ffff:{address}]"
    yield "IPv4-mapped", f"[::ffff:{high}:{low}]"
    yield "IPv4-mapped", f"[0:0:0:0:0:ffff:{high}:{low}]"
    yield "IPv4-compatible", f"[::{high}:{low}]"
    yield "IPv4-translated", f"[::ffff:0:{high}:{low}]"
    yield "NAT64", f"[64:ff9b::{high}:{low}]"
    yield "NAT64", f"[64:ff9b:1::{high}:{low}]"
    yield "NAT64", f"[64:ff9b:1:{number >> 16:x}:{number >> 8 & 0xFF:x}:{(number & 0xFF) << 8:x}::]"
    yield "6to4", f"[2002:{high}:{low}::1]"
    yield "Teredo", f"[2001:0:4136:e378:8000:63bf:{~number >> 16 & 0xFFFF:x}:{~number & 0xFFFF:x}]"
    yield "ISATAP", f"[2606:4700::5efe:{high}:{low}]"


def _list_hosts() -> Iterator[tuple[str, str, bool]]:
    for address in (*PRIVATE[:3], *NEVER[:4]):
        for kind, host in list_notations(address):
            yield kind, host, address in NEVER
    for address in (*PRIVATE[3:], *NEVER[4:]):
        yield "dotted", address, address in NEVER
    for host in _OTHER_PRIVATE:
        yield "special address", host, False
    for host in _OTHER_NEVER:
        yield "special address", host, True


def _list_names(names: NameServer) -> Iterator[tuple[str, str, bool]]:
    """Add hostile names to the zone and list them."""
    names.add("loopback.localhost", ["127.0.0.1"])
    for name in _METADATA_NAMES:
        yield "metadata name", names.add(name, ["169.254.169.254"]), True
    ipv6 = ("::1", "fd00:ec2::254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:0:a9fe:a9fe", "fd20:ce::254")
    for number, address in enumerate((*PRIVATE, *NEVER, *ipv6)):
        is_never = address not in (*PRIVATE, "::1")
        zone = f"{number}.attacker.test"
        yield "name", names.add(f"a{zone}", [address]), is_never
        names.add(f"end{zone}", [address])
        yield "CNAME", names.add(f"c{zone}", [f"end{zone}"]), is_never
        for depth in range(3):
            names.add(f"chain{depth}{zone}", [f"chain{depth + 1}{zone}" if depth < 2 else f"end{zone}"])
        yield "CNAME", f"chain0{zone}", is_never
        yield "mixed answers", names.add(f"m{zone}", [PUBLIC_ADDRESS, address]), is_never
        yield "mixed answers", names.add(f"n{zone}", [address, PUBLIC_ADDRESS]), is_never
        yield "second lookup", names.add(f"r{zone}", [PUBLIC_ADDRESS], [address]), is_never
        yield "second lookup", names.add(f"s{zone}", [PUBLIC_ADDRESS], [PUBLIC_ADDRESS], [address]), is_never
        yield "second lookup", names.add(f"t{zone}", [PUBLIC_ADDRESS], [f"end{zone}"]), is_never


def _list_tricks() -> Iterator[HostileUrl]:
    good = "public.attacker.test"
    for bad, is_never in (("127.0.0.1", False), ("169.254.169.254", True)):
        for scheme in ("https", "http"):
            for text in (
                f"{scheme}://{good}@{bad}/", f"{scheme}://{good}:443@{bad}/", f"{scheme}://{good}%40{bad}/",
                f"{scheme}://{bad}\\@{good}/", f"{scheme}://{good}\\@{bad}/", f"{scheme}://{bad}#@{good}/",
                f"{scheme}://{bad}?@{good}/", f"{scheme}://{bad};@{good}/", f"{scheme}://@{bad}/", f"{scheme}://:@{bad}/",
                f"{scheme}://{good}\t@{bad}/", f"{scheme}://{bad}\t/", f"{scheme}://{bad}\n/", f"{scheme}://{bad}%00.{good}/",
                f"{scheme}://{bad}%0d%0aHost:{good}/", f"{scheme}:{bad}/", f"{scheme}:///{bad}/",
                f"{scheme}:\\\\{bad}/",
                f"{scheme}://[{bad}]/", f"{scheme}:// {bad}/", f" {scheme}://{bad}/", f"{scheme}://{bad}:80:443/",
                f"{scheme}://{bad}:443 @{good}/", f"{scheme.upper()}://{bad}/", f"//{bad}/", f"{scheme}://{bad}。/",
            ):  # fmt: skip
                yield HostileUrl("URL syntax", text, is_never)
    for scheme in ("file", "ftp", "gopher", "dict", "ldap", "ws", "wss", "unix", "http+unix", "jar", "tftp", "netdoc"):
        yield HostileUrl("other scheme", f"{scheme}://169.254.169.254:6379/etc/passwd", True)
    for port in (22, 25, 2375, 4222, 6379, 6443, 9200, 10250, 11211):
        yield HostileUrl("inner port", f"https://127.0.0.1:{port}/")


def _list_redirects(redirects: Redirects, urls: list[HostileUrl]) -> Iterator[HostileUrl]:
    """List redirects to hostile URLs, directly and over several hops."""
    for number, each in enumerate(urls):
        location = each.url.encode().decode("latin-1")
        if "\n" not in location:
            yield HostileUrl("redirect", redirects.add(location, _STATUSES[number % 5]), True)
    for target in ("https://169.254.169.254/latest/meta-data/", "https://127.0.0.1/", "https://[::ffff:10.0.0.5]/"):
        for hops in (2, 3, 4):
            path = redirects.add(target)
            for _ in range(hops - 1):
                path = redirects.add(f"https://public.attacker.test{path}")
            yield HostileUrl("redirect chain", path, True)
        yield HostileUrl("redirect", redirects.add(target.removeprefix("https:")), True)
        yield HostileUrl("redirect", redirects.add(target.replace("https", "http")), True)
        yield HostileUrl("redirect", redirects.add(f"0; url={target}", "200 OK", "Refresh"), True)
        yield HostileUrl("redirect", redirects.add(target, "300 Multiple Choices"), True)
        yield HostileUrl("redirect", redirects.add(target, "305 Use Proxy"), True)
        yield HostileUrl("redirect", redirects.add(target, "201 Created"), True)
        yield HostileUrl("redirect", redirects.add(f'h2="{target}"; ma=60', "200 OK", "Alt-Svc"), True)


def list_hostile_urls(names: NameServer, redirects: Redirects) -> list[HostileUrl]:
    """List all hostile URLs; add the names to the zone and the redirects to the sites."""
    urls = [
        HostileUrl(kind, f"{scheme}://{host}/latest/meta-data/", is_never)
        for scheme in ("https", "http")
        for kind, host, is_never in _list_hosts()
    ]
    urls += [
        HostileUrl(kind, f"https://{host}/latest/meta-data/", is_never) for kind, host, is_never in _list_names(names)
    ]
    urls += _list_tricks()
    return [*urls, *_list_redirects(redirects, urls[::5])]
