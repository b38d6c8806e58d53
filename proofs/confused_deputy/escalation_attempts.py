"""Exchanges that ask for more than the token in hand has."""

import json

from proofs.confused_deputy.testbed import FOREIGN_ORIGIN, OTHER_TENANT, Testbed
from proofs.kit.http_client import HttpConnection
from proofs.tools.deputy import AUDIENCE

_TYPE = "urn:ietf:params:oauth:token-type:"
_DEEPEST = 8


async def try_escalations(testbed: Testbed, user: str, agent: str, stranger: str) -> tuple[int, list[str]]:
    """How many wishes were tried, and those that were granted. `stranger` is an agent of another tenant."""
    http = HttpConnection.for_url(testbed.url)
    own_limits = {
        "tools": _encode_tools("deputy.look", "1.0.0"),
        "ceiling": "read",
        "task": "reading",
        "lifetime": "600",
    }
    narrow_token = deep_token = await testbed.delegate(http, user, agent, **own_limits)
    for _ in range(_DEEPEST - 1):
        deep_token = await testbed.delegate(http, deep_token, agent)
    successes = []
    escalations = _build_escalations()
    for label, parameters in escalations.items():
        answer = await testbed.exchange_token(http, narrow_token, agent, **parameters)
        if answer.status != 400:
            successes.append(f"{label}: {answer.status} {answer.body[:200]!r}")
    depth_response = await testbed.exchange_token(http, deep_token, agent)
    foreign_response = await testbed.exchange_token(http, narrow_token, stranger)
    successes += ["one more agent than may be"] * (depth_response.status != 400)
    successes += ["an agent of another tenant"] * (foreign_response.status != 400)
    http.close()
    return len(escalations) + 2, successes


def _build_escalations() -> dict[str, dict[str, str]]:
    return {
        "a scope": {"scope": "proof:write deputize:admin"},
        "another tool": {"tools": _encode_tools("deputy.act", "1.0.0")},
        "every tool": {"tools": _encode_tools("*", "*")},
        "every version": {"tools": _encode_tools("deputy.look", "*")},
        "a range around the version": {"tools": _encode_tools("deputy.look", "^1")},
        "worse effects": {"ceiling": "destructive"},
        "another task": {"task": "writing"},
        "another audience": {"audience": AUDIENCE},
        "another resource": {"resource": FOREIGN_ORIGIN},
        "another agent's name": {"agent": "agent-1"},
        "an id token": {"requested_token_type": f"{_TYPE}id_token"},
        "a refresh token": {"requested_token_type": f"{_TYPE}refresh_token"},
        "a life without end": {"lifetime": "-1"},
        "an actor of its own": {"act": '{"sub":"admin"}'},
        "a subject of its own": {"sub": "admin"},
        "a tenant of its own": {"tenant": OTHER_TENANT},
    }


def _encode_tools(name: str, versions: str) -> str:
    return json.dumps([{"tool_id": name, "version_range": versions}])
