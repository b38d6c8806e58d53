"""A program runs to its next call or its end, does the same each time, and reaches nothing."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from deputize.execute.job_processes import JobProcesses
from deputize.runs.program_job import replay_job

pytestmark = pytest.mark.requirement("EXE-2")

FUNCTIONS = ("shop__find", "shop__sell")


def build_request(code: str, calls: Sequence[dict[str, Any]] = (), **more: Any) -> bytes:
    return orjson.dumps(
        {
            "code": code, "functions": FUNCTIONS, "calls": list(calls), "seconds": 5.0, "memory_bytes": 32 << 20,
            "clock_ms": 1_767_225_600_000, "seed": "s", "sandbox": None, **more,
        }
    )  # fmt: skip


def run(code: str, calls: Sequence[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
    reply: dict[str, Any] = orjson.loads(replay_job(build_request(code, calls, **more)))
    return reply


def fail(code: str, calls: Sequence[dict[str, Any]] = ()) -> tuple[str, int | None, str]:
    failure = run(code, calls)["end"]["failure"]
    return failure["kind"], failure["line"], failure["message"]


def answer(code: str, *values: Any) -> dict[str, Any]:
    """Run a program to its end, with these results of its calls."""
    calls: list[dict[str, Any]] = []
    for value in values:
        call = run(code, calls)["call"]
        assert call["number"] == len(calls) + 1
        calls.append({"digest": call["digest"], "answer": {"return_value": value}})
    return run(code, calls)


def test_a_program_stops_at_its_next_call_and_goes_on_with_the_result() -> None:
    code = "total = 0\nfor each in ['a', 'b']:\n    total += shop__find(name=each)['price']\nprint(total)\ntotal"
    assert run(code)["call"]["arguments"] == {"name": "a"}
    assert run(code)["call"]["line"] == 3
    end = answer(code, {"price": 2}, {"price": 3})["end"]
    assert (end["result"], end["printed"], end["calls"]) == (5, "5\n", 2)


def test_a_tool_is_a_value_like_any_other_function() -> None:
    code = "def each(f, *names):\n    return [f(name=name) for name in names]\neach(shop__find, 'a', 'b')"
    assert answer(code, 1, 2)["end"]["result"] == [1, 2]


def test_what_does_not_repeat_what_is_recorded_is_refused() -> None:
    call = run("shop__find(name='a')")["call"]
    record = {"digest": call["digest"], "answer": {"return_value": 1}}
    for other in ("shop__find(name='b')", "shop__sell(name='a')", "1", "shop__find(name='a', more=1)"):
        assert fail(other, [record])[0] == "differs", other
    # A call that is planned, and was not made yet, is the next one.
    assert run("shop__find(name='a')", [{"digest": call["digest"]}])["call"]["number"] == 1


def test_a_refusal_is_an_exception_that_the_program_may_catch() -> None:
    code = "try:\n    shop__sell(name='a')\nexcept PermissionError as error:\n    print(error)"
    record = {
        "digest": run(code)["call"]["digest"],
        "answer": {"exc_type": "PermissionError", "message": "a rule denies it"},
    }
    assert run(code, [record])["end"]["printed"] == "a rule denies it\n"
    kind, line, message = fail("\nshop__sell(name='a')", [record])
    assert (kind, line, message) == ("raised", 2, "PermissionError: a rule denies it")


@pytest.mark.parametrize(
    ("code", "kind", "line", "words"),
    [
        ("\n\nmissing", "raised", 3, "NameError"),
        ("def f():\n    1 / 0\nf()", "raised", 2, "ZeroDivisionError"),
        ("x = (", "raised", 1, "parsing"),
        ("shop__find('a')", "raised", 1, "by name"),
        ("shop__find(name={1, 2})", "raised", 1, "not JSON"),
        ("shop__find(name=float('nan'))", "raised", 1, "not JSON"),
        ("shop__find(name='x' * 300_000)", "raised", 1, "characters"),
        ("1\nshop__burn(name='a')", "not_allowed", 2, "shop__burn"),
        ("exit()", "not_allowed", 1, "exit"),
        ("input()", "not_allowed", 1, "input"),
        ("y = [0] * 10**9", "memory", 1, "memory limit"),
        ("9 ** 9 ** 9", "memory", 1, "memory limit"),
        ("','.join(['x' * 1000] * 10**6)", "memory", None, "memory limit"),
        ("{'a': [10**5000]}", "raised", None, "more than 4,300 digits"),
        ("def f(n):\n    return f(n + 1)\nf(0)", "recursion", 2, "recursion"),
        ("(" * 5000 + "1" + ")" * 5000, "raised", None, "nested"),
        ("open('/etc/passwd').read()", "raised", 1, "PermissionError"),
        ("from pathlib import Path\nPath('/etc/passwd').read_text()", "raised", 2, "PermissionError"),
        ("import os\nos.environ['HOME']", "raised", 2, "not supported"),
        ("import os\nos.listdir('/')", "raised", 2, ""),
        ("import os\nos.urandom(4)", "raised", 2, "not supported"),
        ("import os\nos.system('id')", "raised", 2, "AttributeError"),
        ("import subprocess", "raised", 1, "ModuleNotFoundError"),
        ("import socket", "raised", 1, "ModuleNotFoundError"),
        ("import ctypes", "raised", 1, "ModuleNotFoundError"),
        ("().__class__.__bases__[0].__subclasses__()", "raised", 1, "AttributeError"),
    ],
)
def test_a_failure_says_its_kind_and_line(code: str, kind: str, line: int | None, words: str) -> None:
    failure = fail(code)
    assert failure[0] == kind, failure
    assert line is None or failure[1] == line, failure
    assert words in failure[2]


def test_computing_without_end_is_stopped() -> None:
    failure = run("while True:\n    print('x' * 100)", seconds=0.3)["end"]
    assert failure["failure"]["kind"] == "time"
    assert (len(failure["printed"]), failure["is_printed_cut"]) == (65_536, True)


def test_catching_everything_does_not_catch_a_limit() -> None:
    code = (
        "try:\n    while True:\n        pass\nexcept BaseException:\n    print('caught')\nfinally:\n    print('more')"
    )
    end = run(code, seconds=0.3)["end"]
    assert (end["failure"]["kind"], end["printed"]) == ("time", "")


def test_values_that_are_not_json_are_returned_as_text() -> None:
    for code, result, is_cut in (
        ("{1, 2}", "{1, 2}", False),
        ("(1, None)", [1, None], False),
        ("2 ** 60", str(2**60), False),
        ("float('inf')", "inf", False),
        ("'x' * 100_000", '"' + "x" * 65_535, True),
        ("lambda: 1", "<function '<lambda>' at 0xc>", False),
        ("print('only')", None, False),
    ):
        end = run(code)["end"]
        assert (end["result"], end["is_result_cut"]) == (result, is_cut), code


def test_the_clock_and_chance_depend_on_the_call_alone() -> None:
    code = "import random, time\nrandom.seed\n[time.time(), random.random(), hash('a'), list({'b', 'a', 'c'}), id([])]"
    first = run(code)["end"]["result"]
    assert first[0] == 1_767_225_600.0
    assert run(code)["end"]["result"] == first
    assert run(code, seed="t")["end"]["result"][1] != first[1]


@pytest.mark.nightly
async def test_a_value_that_grows_when_it_is_taken_out_ends_its_process_and_no_other_job() -> None:
    jobs = JobProcesses()
    try:
        for last_line in ("x", "shop__find(name=x)"):
            request = build_request(f"x = []\nfor _ in range(40):\n    x = [x, x]\n{last_line}")
            assert await jobs.begin_job("t", replay_job, request, seconds=1) is None
        reply = await jobs.begin_job("t", replay_job, build_request("1"), seconds=1)
        assert reply is not None
        assert orjson.loads(reply)["end"]["result"] == 1
    finally:
        await jobs.aclose()
