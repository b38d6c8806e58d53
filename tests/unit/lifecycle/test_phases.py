"""Skipping a phase does not compile, and only one file opens a phase."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LIFECYCLE = ROOT / "src" / "deputize" / "lifecycle"

pytestmark = pytest.mark.requirement("INV-1")

_HEAD = """
from deputize.core.outcome import Outcome
from deputize.lifecycle.tenant_snapshot import TenantAuthority
from deputize.lifecycle.authorize import authorize
from deputize.lifecycle.claim import ClaimGuard
from deputize.lifecycle.execute import execute
from deputize.lifecycle.phases import Authorized, Executed, CallContext, Validated, Verified
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.reply import reply
from deputize.lifecycle.validate import validate
from deputize.lifecycle.verify import verify


async def run_phases(runtime: Runtime, call: CallContext, authority: TenantAuthority) -> Outcome:
"""

_GOOD = """
    validated = validate(call, authority, runtime.metrics)
    authorized = await authorize(runtime, validated, authority)
    guard = ClaimGuard(runtime, authorized)
    executed = await execute(runtime, authorized, guard)
    if isinstance(executed, Outcome):
        return executed
    verified = await verify(runtime, executed)
    return await reply(runtime, verified)
"""

# Each leaves one phase out of the good one: what is handed over, to whom, and what should have been.
_BAD = {
    "without_validate": (
        "authorize(runtime, call, authority)", 'Argument 2 to "authorize"', "CallContext", "Validated",
    ),
    "without_authorize": ("execute(runtime, validated, guard)", 'Argument 2 to "execute"', "Validated", "Authorized"),
    "without_execute": ("verify(runtime, authorized)", 'Argument 2 to "verify"', "Authorized", "Executed"),
    "without_verify": ("reply(runtime, executed)", 'Argument 2 to "reply"', "Executed", "Verified"),
}  # fmt: skip


def _replace_call(call: str) -> str:
    """The good one with one hand-over replaced."""
    name = call.partition("(")[0]
    replaced, count = re.subn(rf"{name}\([^)]*\)", call, _GOOD)
    assert count == 1
    return replaced


@pytest.fixture(scope="module")
def mypy_errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What mypy says of each snippet; one run for all, since most of it is reading the package."""
    folder = tmp_path_factory.mktemp("snippets")
    snippets = {"good": _GOOD, **{name: _replace_call(call) for name, (call, *_) in _BAD.items()}}
    for name, text in snippets.items():
        (folder / f"{name}.py").write_text(_HEAD + text.lstrip("\n"), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary",
         *[str(folder / f"{name}.py") for name in snippets]],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    lines = ran.stdout.splitlines()
    return {name: [line for line in lines if f"/{name}.py:" in line and ": error:" in line] for name in snippets}


def test_a_call_that_passes_every_phase_type_checks(mypy_errors: dict[str, list[str]]) -> None:
    assert mypy_errors["good"] == []


@pytest.mark.parametrize("name", _BAD)
def test_leaving_a_phase_out_does_not_type_check(mypy_errors: dict[str, list[str]], name: str) -> None:
    _, where, given, wanted = _BAD[name]
    assert any(
        where in line and f'"{given}"' in line and f'expected "{wanted}"' in line and "[arg-type]" in line
        for line in mypy_errors[name]
    ), mypy_errors[name]


def test_only_the_run_opens_phases() -> None:
    opens = re.compile(r"\.phase\(|\bphase\(Span\.|trail\.phase\b")
    files = [path for path in (ROOT / "src" / "deputize").rglob("*.py") if opens.search(path.read_text("utf-8"))]
    assert files == [LIFECYCLE / "run.py"]


def test_the_run_opens_each_phase_once_and_in_order() -> None:
    text = (LIFECYCLE / "run.py").read_text(encoding="utf-8")
    # A run or flow that goes on was decided again before it comes here; it is executed, and ends like any other call.
    every = ["VALIDATE", "AUTHORIZE", "EXECUTE", "EXECUTE", "EXECUTE", "VERIFY", "REPLY"]
    assert re.findall(r"phase\(Span\.(\w+)\)", text) == every
    called = re.findall(r"= (?:await )?(validate|authorize|execute|verify)(?:_call)?\(|return await (reply)\(", text)
    assert [name or last for name, last in called] == ["validate", "authorize", "execute", "verify", "reply"]


def test_every_interface_uses_the_one_lifecycle_run() -> None:
    """Nothing outside the lifecycle takes a phase by itself."""
    taken = re.compile(r"from deputize\.lifecycle\.(validate|authorize|execute|verify|reply|claim)\b")
    outside = [
        path
        for path in (ROOT / "src" / "deputize").rglob("*.py")
        if LIFECYCLE not in path.parents and taken.search(path.read_text(encoding="utf-8"))
    ]
    assert outside == []
