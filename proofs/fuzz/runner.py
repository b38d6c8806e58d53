"""What every fuzzer of ours does: cases from Hypothesis, sent one by one, each answer held against the API document."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema_rs
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from proofs.kit.http_client import HttpConnection, HttpResponse

_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One request as bytes, and what it asks for if it is well formed enough to say."""

    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "POST"
    request: Any = None


AnswerCheck = Callable[[Case, HttpResponse], str | None]
"""What is wrong with an answer, if anything."""


@dataclass(kw_only=True, slots=True)
class FuzzResult:
    cases: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)
    never_done: list[str] = field(default_factory=list)
    """What was asked again and again and never once done."""

    def report(self, what: str, case: Case, answer: HttpResponse | None) -> None:
        self.wrong[what] += 1
        if self.wrong[what] <= 3:
            response = f"{answer.status} {answer.body[:400]!r}" if answer else "no answer"
            request = f"{case.method} {case.path[:300]} {case.headers} {case.body[:300]!r}"
            self.samples.append(f"{what}: {request} -> {response}")


async def run_cases(
    line: HttpConnection,
    plain: Sequence[Case],
    cases: st.SearchStrategy[Case],
    check_answer: AnswerCheck,
    *,
    count: int,
    number: int,
) -> FuzzResult:
    """The plain ones, then so many others, the same ones for the same number. Hypothesis thinks in a thread."""
    result, loop = FuzzResult(), asyncio.get_running_loop()

    def send(case: Case) -> HttpResponse | None:
        # Twice: a server may close a line on which nothing was said for a while, and Hypothesis may think for long.
        for _ in range(2):
            request = line.send(case.method, case.path, headers=case.headers, body=case.body)
            try:
                return asyncio.run_coroutine_threadsafe(asyncio.wait_for(request, _SECONDS), loop).result()
            except (OSError, EOFError):
                continue
            except TimeoutError:
                return None
        return None

    def check_case(case: Case) -> None:
        answer = send(case)
        result.cases += 1
        what = "no answer" if answer is None else check_answer(case, answer)
        if what is not None:
            result.report(what, case, answer)

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def run_generated(case: Case) -> None:
        check_case(case)

    def run_every() -> None:
        for case in plain:
            check_case(case)
        run_generated()

    await asyncio.to_thread(run_every)
    return result


class DocumentSchemas:
    """The shapes of an API document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._validators: dict[str, Any] = {}

    def find_mismatch(self, schema: dict[str, Any], value: Any) -> str | None:
        if (
            isinstance(value, dict)
            and isinstance(value.get("error"), dict)
            and value["error"].get("slug") == "internal"
        ):
            return "internal"
        cache_key = str(schema)
        validator = self._validators.get(cache_key)
        if validator is None:
            full_schema = {**schema, "components": self.document["components"]}
            validator = self._validators[cache_key] = jsonschema_rs.Draft202012Validator(full_schema)
        return None if validator.is_valid(value) else f"not a {get_schema_name(schema)}"


def build_schema(*names: str) -> dict[str, Any]:
    """One of these shapes."""
    refs = [{"$ref": f"#/components/schemas/{name}"} for name in names]
    return refs[0] if len(refs) == 1 else {"anyOf": refs}


def get_schema_name(schema: dict[str, Any]) -> str:
    refs = [each.get("$ref", "") for each in schema.get("anyOf", [schema])]
    return " or ".join(ref.rpartition("/")[2] or "?" for ref in refs)
