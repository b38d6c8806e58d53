"""Parse and check large policy sets in another process; Cedar holds the GIL, so a thread would still block the loop.

The jobs run in that process (`execute/job_processes.py`). What it has parsed comes back as JSON and into the cache of
rules, so that this process compiles the set without parsing it again. Small sets are parsed here, which is quicker
than to ask.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

import orjson

from deputize.core.errors import PolicyInvalid
from deputize.govern.policy.cedar_schema import FactTypes
from deputize.govern.policy.checks.validate import KnownNames, PolicyFindings, validate_policies
from deputize.govern.policy.evaluation_job import JobRunner
from deputize.govern.policy.policy_parser import (
    PolicyDiagnostic,
    PolicyFile,
    cache_rule,
    list_unparsed_texts,
    parse_rule,
    rule_from_json,
    rule_to_json,
)

# About twenty rules, which take some milliseconds.
_MAX_CHARACTERS_HERE: Final = 4_096
_TOO_COSTLY: Final = (
    "checking these policies took more time or memory than is allowed, or too many checks wait: use fewer or simpler "
    "rules, or try again when fewer checks are running"
)


async def parse_off_loop(files: Sequence[PolicyFile], run_job: JobRunner) -> None:
    """Parse what is new in a set of policies in another process, and keep it in the cache of rules.

    If that fails, it is not in the cache, and is parsed where it is compiled.
    """
    texts = await asyncio.to_thread(list_unparsed_texts, files)
    if sum(map(len, texts)) > _MAX_CHARACTERS_HERE:
        reply = await run_job(parse_rules_job, orjson.dumps(texts))
        if reply is not None:
            await asyncio.to_thread(_cache_rules, texts, reply)


async def validate_off_loop(
    files: Sequence[PolicyFile],
    facts: FactTypes,
    known_names: KnownNames,
    run_job: JobRunner,
    *,
    unseen_servers: Collection[str] = (),
) -> PolicyFindings:
    """Check a set of policies as `validate_policies` does; a large set in another process."""
    if sum(len(each.text) for each in files) <= _MAX_CHARACTERS_HERE:
        return await asyncio.to_thread(
            validate_policies, files, facts, known_names=known_names, unseen_servers=unseen_servers
        )
    request = {
        "files": [{"path": each.path, "text": each.text} for each in files],
        "facts": dict(facts),
        "known_names": {
            kind: {name: sorted(names_of_facts) for name, names_of_facts in names.items()}
            for kind, names in known_names.items()
        },
        "unseen_servers": sorted(unseen_servers),
    }
    reply = await run_job(validate_policies_job, orjson.dumps(request))
    if reply is None:
        raise PolicyInvalid(_TOO_COSTLY)
    findings = orjson.loads(reply)
    return PolicyFindings(
        **{kind: tuple(PolicyDiagnostic(**each) for each in several) for kind, several in findings.items()}
    )


def parse_rules_job(payload: bytes) -> bytes:
    """Parse rules, each from its text; reply with their contents in the same order."""
    return orjson.dumps([rule_to_json(cache_rule(text, parse_rule(text))) for text in orjson.loads(payload)])


def validate_policies_job(payload: bytes) -> bytes:
    """Check a set of policies; reply with the findings."""
    request = orjson.loads(payload)
    files = [PolicyFile(**each) for each in request["files"]]
    findings = validate_policies(
        files, request["facts"], known_names=request["known_names"], unseen_servers=request["unseen_servers"]
    )
    return orjson.dumps(findings.to_json())


def _cache_rules(texts: Sequence[str], reply: bytes) -> None:
    for text, content in zip(texts, orjson.loads(reply), strict=True):
        cache_rule(text, rule_from_json(content))
