"""What every fuzzer of ours does: cases from Hypothesis, sent one by one, each answer held against the API document.

Above: `poison` and `poison_runs`, which know what to send and how an answer is judged. Below: `wire`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema_rs
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from proofs.kit.wire import Answer, Line

_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One request as bytes, and what it asks for if it is well formed enough to say."""

    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"
    request: Any = None


Judge = Callable[[Case, Answer], str | None]
"""What is wrong with an answer, if anything."""


@dataclass(kw_only=True, slots=True)
class Fuzzed:
    cases: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    """What was asked again and again and never once done."""

    def report(self, what: str, case: Case, answer: Answer | None) -> None:
        self.wrong[what] += 1
        if self.wrong[what] <= 3:
            said = f"{answer.status} {answer.body[:400]!r}" if answer else "no answer"
            asked = f"{case.method} {case.path[:300]} {case.headers} {case.body[:300]!r}"
            self.samples.append(f"{what}: {asked} -> {said}")


async def send_all(
    line: Line, plain: Sequence[Case], cases: st.SearchStrategy[Case], judge: Judge, *, count: int, number: int
) -> Fuzzed:
    """The plain ones, then so many others, the same ones for the same number. Hypothesis thinks in a thread."""
    found, loop = Fuzzed(), asyncio.get_running_loop()

    def send(case: Case) -> Answer | None:
        # Twice: a server may close a line on which nothing was said for a while, and Hypothesis may think for long.
        for _ in range(2):
            sending = line.send(case.method, case.path, headers=case.headers, body=case.body)
            try:
                return asyncio.run_coroutine_threadsafe(asyncio.wait_for(sending, _SECONDS), loop).result()
            except (OSError, EOFError):
                continue
            except TimeoutError:
                return None
        return None

    def look(case: Case) -> None:
        answer = send(case)
        found.cases += 1
        what = "no answer" if answer is None else judge(case, answer)
        if what is not None:
            found.report(what, case, answer)

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def one(case: Case) -> None:
        look(case)

    def every() -> None:
        for case in plain:
            look(case)
        one()

    await asyncio.to_thread(every)
    return found


class Documented:
    """The shapes of an API document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._validators: dict[str, Any] = {}

    def fits(self, schema: dict[str, Any], value: Any) -> str | None:
        if (
            isinstance(value, dict)
            and isinstance(value.get("error"), dict)
            and value["error"].get("slug") == "internal"
        ):
            return "internal"
        named = str(schema)
        validator = self._validators.get(named)
        if validator is None:
            whole = {**schema, "components": self.document["components"]}
            validator = self._validators[named] = jsonschema_rs.Draft202012Validator(whole)
        return None if validator.is_valid(value) else f"not a {name_of(schema)}"


def model(*names: str) -> dict[str, Any]:
    """One of these shapes."""
    refs = [{"$ref": f"#/components/schemas/{name}"} for name in names]
    return refs[0] if len(refs) == 1 else {"anyOf": refs}


def name_of(schema: dict[str, Any]) -> str:
    refs = [each.get("$ref", "") for each in schema.get("anyOf", [schema])]
    return " or ".join(ref.rpartition("/")[2] or "?" for ref in refs)
