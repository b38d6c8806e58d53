"""Send every documented request with ids and names that belong to somebody else, and compare with ones nobody has."""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proofs.kit.http_client import HttpResponse
from proofs.red_team.token_holder import TokenHolder

_PARAMETER = re.compile(r"{(\w+)}")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|[0-9a-f]{32}")
_PASSED_OVER = ("/oauth", "/rpc", "/.well-known", "/t/", "/healthz", "/readyz", "/openapi", "/docs")
# Streams, which end only with what they follow.
_ENDLESS = ("/events", "/tail")
# Enough fields for a body to be taken for what most routes expect.
_BODY: Mapping[str, Any] = {
    "reason": "an attempt", "outcome": "happened", "state": "disabled", "binding": "0" * 64, "checkpoint": "a",
}  # fmt: skip


@dataclass(kw_only=True, slots=True)
class RouteProbes:
    """What is tried: `real` values by the parameter that takes them; any other parameter takes those of `id`."""

    holder: TokenHolder
    real: Mapping[str, Sequence[str]]
    count: int = 0
    crossings: list[str] = field(default_factory=list)

    async def probe(self, who: str, token: str, words: Sequence[str], *, is_stranger: bool) -> None:
        """Probe every route for the words. A stranger must not even learn from an answer whether something exists."""
        paths = (await self.holder.send("GET", "/openapi.json")).json()["paths"]
        for path, operations in sorted(paths.items()):
            if path.startswith(_PASSED_OVER) or path.endswith(_ENDLESS):
                continue
            for method in sorted(operations):
                if method == "get" or _PARAMETER.search(path):
                    await self._probe_route(who, token, method.upper(), path, words, is_stranger)

    async def _probe_route(
        self, who: str, token: str, method: str, path: str, words: Sequence[str], is_stranger: bool
    ) -> None:
        names = _PARAMETER.findall(path)
        body = None if method in ("GET", "DELETE") else _BODY
        values = [self.real.get(name, self.real["id"]) for name in names]
        # All parameters of a route take the same turn: a tool's name with its version, an id with itself.
        turns = max((len(each) for each in values), default=1)
        for turn in range(turns):
            filled = {name: each[turn % len(each)] for name, each in zip(names, values, strict=True)}
            answer = await self.holder.send(method, path.format(**filled), body, token=token)
            self.count += 1
            leaks = [word for word in words if word.encode() in answer.body]
            if leaks:
                self._note(who, method, path, answer, f"leaks {leaks}")
            if not names or not is_stranger:
                continue
            invented = {name: "nobody.has" if name in self.real else str(uuid.uuid4()) for name in names}
            invented |= {name: filled[name] for name in names if name == "version"}
            other = await self.holder.send(method, path.format(**invented), body, token=token)
            if _normalize(answer, filled) != _normalize(other, invented):
                self._note(who, method, path, answer, f"differs from {other.status} {other.body[:120]!r}")

    def _note(self, who: str, method: str, path: str, answer: HttpResponse, what: str) -> None:
        self.crossings.append(f"{who} {method} {path}: {answer.status} {answer.body[:120]!r} {what}")


def _normalize(answer: HttpResponse, filled: Mapping[str, str]) -> tuple[int, str]:
    text = answer.body.decode(errors="replace")
    for value in filled.values():
        text = text.replace(value, "VALUE")
    return answer.status, _ID.sub("ID", text)
