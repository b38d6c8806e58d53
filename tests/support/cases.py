"""Check every case of a table in one test, and report all cases that fail, each by its name.

For tables of hundreds of cheap cases, where collecting and reporting one test per case costs more than the case itself.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

Test = Callable[..., Any]


def check_each(names: str, cases: Iterable[Any], *, label: Callable[..., str]) -> Callable[[Test], Test]:
    """Run the test once for each case, like `parametrize`; it fails after the last one, with every failure.

    Several names are separated by commas, and each case is then a tuple. `label` names a case from its values.
    """
    parameters = [name.strip() for name in names.split(",")]
    rows = [case if len(parameters) > 1 else (case,) for case in cases]

    def decorate(test: Test) -> Test:
        @wraps(test)
        def run_all(**fixtures: Any) -> None:
            with _collect_failures() as failures:
                for row in rows:
                    with _name_failure(label(*row), failures):
                        test(**dict(zip(parameters, row, strict=True)), **fixtures)

        @wraps(test)
        async def run_all_async(**fixtures: Any) -> None:
            with _collect_failures() as failures:
                for row in rows:
                    with _name_failure(label(*row), failures):
                        await test(**dict(zip(parameters, row, strict=True)), **fixtures)

        return _without_parameters(run_all_async if inspect.iscoroutinefunction(test) else run_all, test, parameters)

    return decorate


@contextmanager
def _collect_failures() -> Iterator[dict[str, BaseException]]:
    failures: dict[str, BaseException] = {}
    yield failures
    if failures:
        raise BaseExceptionGroup(f"failed for {', '.join(failures)}", list(failures.values()))


@contextmanager
def _name_failure(name: str, failures: dict[str, BaseException]) -> Iterator[None]:
    try:
        yield
    except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 - raised together after the last case
        failure.add_note(f"in the case {name}")
        failures[name] = failure


def _without_parameters(wrapper: Test, test: Test, names: Sequence[str]) -> Test:
    """Hide what the table fills in, so that pytest looks for fixtures only."""
    signature = inspect.signature(test)
    fixtures = [each for name, each in signature.parameters.items() if name not in names]
    wrapper.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]  # read by inspect
    return wrapper
