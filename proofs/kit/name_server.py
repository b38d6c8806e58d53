"""Answer DNS queries as an attacker would: with scripted addresses that change from one query to the next."""

import ipaddress
import socket
import struct
import threading
from collections import Counter
from collections.abc import Sequence

_A, _CNAME, _AAAA = 1, 5, 28
_ANSWER_FLAGS, _NO_SUCH_NAME = 0x8580, 3


class NameServer:
    """A DNS server on 127.0.0.1. The n-th query of a name gets its n-th list of answers, later ones the last list.

    An answer is an address or another name. Every name that was not added does not exist.
    """

    def __init__(self) -> None:
        self._zone: dict[str, tuple[tuple[str, ...], ...]] = {}
        self._query_counts: Counter[tuple[str, int]] = Counter()
        self._asked: list[str] = []
        self._lock = threading.Lock()

    def add(self, name: str, *answers: Sequence[str]) -> str:
        """Add a name with its lists of answers, one for each query; return the name."""
        with self._lock:
            self._zone[name.lower()] = tuple(tuple(each) for each in answers)
        return name

    def forget_queries(self) -> None:
        """Begin with the first list of answers again."""
        with self._lock:
            self._query_counts.clear()

    def take_queries(self) -> list[str]:
        """Take the names that were asked for since the last time."""
        with self._lock:
            asked, self._asked = self._asked, []
        return asked

    def start(self) -> None:
        """Serve in a thread that ends with the process."""
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        server.bind(("127.0.0.1", 53))
        threading.Thread(target=self._serve, args=(server,), name="name server", daemon=True).start()

    def _serve(self, server: socket.socket) -> None:
        while True:
            query, sender = server.recvfrom(4_096)
            if len(query) > 12:
                server.sendto(self.build_answer(query), sender)

    def build_answer(self, query: bytes) -> bytes:
        """Build the answer to a query with one question."""
        labels, position = [], 12
        while query[position]:
            labels.append(query[position + 1 : position + 1 + query[position]])
            position += 1 + query[position]
        question = query[12 : position + 5]
        (kind,) = struct.unpack("!H", query[position + 1 : position + 3])
        name = b".".join(labels).decode("latin-1").lower()
        with self._lock:
            self._asked.append(name)
        is_known, records = self._find_records(name, kind)
        head = struct.pack(
            "!HHHHHH", *struct.unpack("!H", query[:2]), _ANSWER_FLAGS | (0 if is_known else _NO_SUCH_NAME), 1,
            len(records), 0, 0,
        )  # fmt: skip
        return head + question + b"".join(records)

    def _find_records(self, name: str, kind: int) -> tuple[bool, list[bytes]]:
        """Find the records of a name, those of the names that it is an alias for behind it."""
        with self._lock:
            if name not in self._zone:
                return False, []
            number = self._query_counts[name, kind]
            self._query_counts[name, kind] += 1
            answers = self._zone[name][min(number, len(self._zone[name]) - 1)]
        records: list[bytes] = []
        for each in answers:
            try:
                address = ipaddress.ip_address(each)
            except ValueError:
                records.append(_build_record(name, _CNAME, _encode_name(each)))
                records += self._find_records(each.lower(), kind)[1]
                continue
            if kind == (_A if address.version == 4 else _AAAA):
                records.append(_build_record(name, kind, address.packed))
        return True, records


def _encode_name(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode("ascii") for label in name.split(".")) + b"\0"


def _build_record(name: str, kind: int, data: bytes) -> bytes:
    """Build a record that may not be kept: its time to live is zero."""
    return _encode_name(name) + struct.pack("!HHIH", kind, 1, 0, len(data)) + data
