"""Evaluate a costly slice in a process of its own, so that the event loop never waits for it.

`evaluate_job` runs in that process (`execute/job_processes.py`). It keeps its latest slices; the gateway sends the
rules of a slice only if they are not there.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import cedarpy
import orjson

from deputize.core.bounded_dict import BoundedDict
from deputize.core.decision import Verdict
from deputize.govern.policy.cedar import CedarAnswer, CedarQuestion, build_question, deny_costly_slice, judge_answers
from deputize.govern.policy.cedar_schema import PolicyQuery, build_entities
from deputize.govern.policy.policy_parser import build_set_json
from deputize.govern.policy.slices import PolicySlice

# Run a job in another process: the job's function and its input; None if it took too much time or memory.
JobRunner = Callable[[Callable[[bytes], bytes], bytes], Awaitable[bytes | None]]
_MISSING: Final = b"missing"
_MAX_SLICES: Final = 8
_slices: BoundedDict[str, tuple[cedarpy.PolicySet, cedarpy.PolicySet]] = BoundedDict(_MAX_SLICES)


async def evaluate_costly_slice(slice_: PolicySlice, query: PolicyQuery, run_job: JobRunner) -> Verdict:
    """Evaluate a slice in another process; a slice that takes too long denies, and the reason names its cost."""
    question = build_question(slice_, query)
    if isinstance(question, Verdict):
        return question
    request = {
        "digest": slice_.digest,
        "question": {
            "principal": question.principal,
            "action": question.action,
            "resource": question.resource,
            "context": question.context,
        },
        "entities": orjson.dumps(build_entities(query.caller, query.tool)).decode(),
    }
    reply = await run_job(evaluate_job, orjson.dumps(request))
    if reply == _MISSING:
        plain_rules = [rule for rule in slice_.rules if not rule.is_conditional_forbid]
        request["rules"] = build_set_json((rule.id, rule.ast) for rule in slice_.rules)
        request["without_conditional_forbids"] = build_set_json((rule.id, rule.ast) for rule in plain_rules)
        reply = await run_job(evaluate_job, orjson.dumps(request))
    if reply is None or reply == _MISSING:
        return deny_costly_slice(slice_)
    answers = [CedarAnswer(**each) for each in orjson.loads(reply)]
    return judge_answers(slice_, query, lambda number: answers[number])


def evaluate_job(payload: bytes) -> bytes:
    """Evaluate one question; reply with the answers of all rules and of those without conditional forbids."""
    request = orjson.loads(payload)
    policies = _slices.get(request["digest"])
    if policies is None:
        if "rules" not in request:
            return _MISSING
        all_rules, plain_rules = request["rules"], request["without_conditional_forbids"]
        policies = _slices.put(
            request["digest"],
            (cedarpy.PolicySet.from_json_str(all_rules), cedarpy.PolicySet.from_json_str(plain_rules)),
        )
    entities = cedarpy.Entities.from_json_str(request["entities"])
    question = CedarQuestion(**request["question"])
    answers = [question.ask(each, entities) for each in policies]
    return orjson.dumps(
        [{"decision": each.decision, "reasons": each.reasons, "errors": each.errors} for each in answers]
    )
