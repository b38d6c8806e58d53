"""The web sites of the proof: the operator's own, at a private address, and an attacker's, at a public one."""

from collections.abc import Callable
from typing import Any

import orjson

from proofs.ssrf.hostile_documents import list_hostile_documents, list_hostile_responses
from proofs.ssrf.hostile_urls import HostileUrl, Redirects
from proofs.ssrf.listeners import make_response

OPERATOR_HOST = "operator.test"
ATTACKER_HOST = "public.attacker.test"
OPERATOR_URL = f"http://{OPERATOR_HOST}"
SECURE_OPERATOR_URL = f"https://{OPERATOR_HOST}"
ATTACKER_URL = f"https://{ATTACKER_HOST}"


class Sites:
    """What both sites answer: redirects, hostile documents, and documents that a place publishes for one attempt."""

    def __init__(self) -> None:
        self.redirects = Redirects()
        self._responses: dict[str, bytes] = {}
        self._count = 0

    def list_documents(self) -> list[HostileUrl]:
        """Serve the hostile documents, and list their paths."""
        responses = [(kind, make_response(body)) for kind, body in list_hostile_documents()]
        return [self.serve(kind, response) for kind, response in [*responses, *list_hostile_responses()]]

    def serve(self, kind: str, response: bytes) -> HostileUrl:
        """Serve a hostile response, and return its path."""
        path = self._reserve_path("hostile")
        self._responses[path] = response
        return HostileUrl(kind, path, True)

    def publish(self, base_url: str, build: Callable[[str], Any]) -> str:
        """Serve a document that is built from its own URL, also at the well-known paths for it; return the URL."""
        path = self._reserve_path("document")
        content = build(base_url + path)
        is_response = isinstance(content, bytes) and content.startswith(b"HTTP/")
        body = content if isinstance(content, bytes) else orjson.dumps(content)
        self._responses[path] = body if is_response else make_response(body)
        return base_url + path

    def answer(self, path: str) -> bytes:
        """Answer a request."""
        redirect = self.redirects.find(path)
        if redirect is not None:
            status, header = redirect
            return make_response(b"", status, header)
        for prefix in ("hostile", "document"):
            before, _, after = path.partition(f"/{prefix}-")
            if after or before != path:
                number = after.partition("/")[0].partition("?")[0]
                return self._responses.get(f"/{prefix}-{number}", make_response(b"", "404 Not Found"))
        return make_response(b"{}")

    def _reserve_path(self, prefix: str) -> str:
        self._count += 1
        return f"/{prefix}-{self._count}"


def answer_stranger(host: str) -> bytes:
    """Answer for any other name of the attacker: with a redirect to the same name, which is then resolved again."""
    return make_response(b"", "302 Found", f"Location: https://{host}/again")
