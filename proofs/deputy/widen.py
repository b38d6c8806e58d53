"""Exchanges that ask for more than the token in hand has.

Above: `proofs.confused_deputy`. Below: `site`.
"""

import json

from proofs.deputy.site import BESIDE, ELSEWHERE, Site
from proofs.kit.wire import Line
from proofs.tools.deputy import AUDIENCE

_TYPE = "urn:ietf:params:oauth:token-type:"
_DEEPEST = 8


async def widen(site: Site, user: str, agent: str, stranger: str) -> tuple[int, list[str]]:
    """How many wishes were tried, and those that were granted. `stranger` is an agent of another tenant."""
    line = Line.to(site.url)
    held = {"tools": _tools("deputy.look", "1.0.0"), "ceiling": "read", "task": "reading", "lifetime": "600"}
    narrow = deep = await site.lend(line, user, agent, **held)
    for _ in range(_DEEPEST - 1):
        deep = await site.lend(line, deep, agent)
    granted = []
    wishes = _wishes()
    for wish, more in wishes.items():
        answer = await site.exchange(line, narrow, agent, **more)
        if answer.status != 400:
            granted.append(f"{wish}: {answer.status} {answer.body[:200]!r}")
    too_deep = await site.exchange(line, deep, agent)
    from_beside = await site.exchange(line, narrow, stranger)
    granted += ["one more agent than may be"] * (too_deep.status != 400)
    granted += ["an agent of another tenant"] * (from_beside.status != 400)
    line.close()
    return len(wishes) + 2, granted


def _wishes() -> dict[str, dict[str, str]]:
    return {
        "a scope": {"scope": "proof:write deputize:admin"},
        "another tool": {"tools": _tools("deputy.act", "1.0.0")},
        "every tool": {"tools": _tools("*", "*")},
        "every version": {"tools": _tools("deputy.look", "*")},
        "a range around the version": {"tools": _tools("deputy.look", "^1")},
        "worse effects": {"ceiling": "destructive"},
        "another task": {"task": "writing"},
        "another audience": {"audience": AUDIENCE},
        "another resource": {"resource": ELSEWHERE},
        "another agent's name": {"agent": "agent-1"},
        "an id token": {"requested_token_type": f"{_TYPE}id_token"},
        "a refresh token": {"requested_token_type": f"{_TYPE}refresh_token"},
        "a life without end": {"lifetime": "-1"},
        "an actor of its own": {"act": '{"sub":"admin"}'},
        "a subject of its own": {"sub": "admin"},
        "a tenant of its own": {"tenant": BESIDE},
    }


def _tools(name: str, versions: str) -> str:
    return json.dumps([{"tool_id": name, "version_range": versions}])
