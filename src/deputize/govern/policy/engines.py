"""Who is asked, and what holds when two engines answer: the stricter of them, with the rules of both."""

from dataclasses import replace
from typing import Literal, Protocol

from deputize.core.decision import Behavior, Question, Verdict
from deputize.core.errors import PolicyFailed

Engine = Literal["cedar", "authzen", "both"]


class Remote(Protocol):
    async def decide(self, question: Question) -> Verdict: ...


async def consult(cedar: Verdict, question: Question, remote: Remote | None, engine: Engine) -> Verdict:
    """The answer of the engine that decides, or of both. What our own rules deny is not asked elsewhere."""
    if engine == "cedar" or (engine == "both" and cedar.behavior is Behavior.DENY):
        return cedar
    if remote is None:
        raise PolicyFailed(
            f"policy.engine is {engine}, and there is no decision point to ask",
            details={"rule": "authzen:no-answer"},
            nothing_happened=True,
        )
    answer = await remote.decide(question)
    return answer if engine == "authzen" else combined(cedar, answer)


def combined(first: Verdict, second: Verdict) -> Verdict:
    """The stricter answer, its own rules first, those of the other after them; of two equal answers, the first.
    Where both ask, the demands of both have to be met.
    """
    strict, mild = (second, first) if second.behavior.strictness > first.behavior.strictness else (first, second)
    agree = mild.behavior is strict.behavior
    return replace(
        strict,
        rules=strict.rules + tuple(rule for rule in mild.rules if rule not in strict.rules),
        digest=first.digest or second.digest,
        errors=first.errors + tuple(error for error in second.errors if error not in first.errors),
        suggestion=strict.suggestion or mild.suggestion,
        demands=strict.demands + tuple(each for each in mild.demands if agree and each not in strict.demands),
    )
