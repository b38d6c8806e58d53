"""What the suite saw, held against what is expected to fail: wrong in either direction is wrong.

Above: `conformance.py`. Below: `reasons.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proofs.conforming.reasons import Expected
from proofs.conforming.suite import Seen


@dataclass(kw_only=True, slots=True)
class Judged:
    """Scenarios by how they went. `wrong` holds a sentence for each that went other than expected, `odd` its name."""

    scenarios: int = 0
    passed: int = 0
    checks: int = 0
    with_reason: int = 0
    wrong: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    # Those that passed, by name: what a revision requires is told apart from what it merely runs.
    names: set[str] = field(default_factory=set)

    def add(self, other: "Judged") -> None:
        self.scenarios += other.scenarios
        self.passed += other.passed
        self.checks += other.checks
        self.with_reason += other.with_reason
        self.wrong += other.wrong


def judge(where: str, wanted: Sequence[str], seen: Mapping[str, Seen], expected: Mapping[str, Expected]) -> Judged:
    """`wanted` is every scenario that was to be run; what is expected of others is nobody's business here."""
    found = Judged()
    for name in wanted:
        found.scenarios += 1
        told = _fault(seen.get(name), expected.get(name))
        if told is not None:
            found.wrong.append(f"{where} {name}: {told}")
            found.odd.append(name)
        elif name in expected:
            found.with_reason += 1
        else:
            found.passed += 1
            found.names.add(name)
        found.checks += seen[name].passed if name in seen else 0
    return found


def _fault(seen: Seen | None, expected: Expected | None) -> str | None:
    if seen is None:
        return "it was not run"
    if expected is None:
        return _said(seen) if seen.failed else None
    if not seen.failed:
        return "it passes, and reasons.py says that it does not"
    if not expected.checks or seen.failed.keys() == expected.checks:
        return None
    more, fewer = seen.failed.keys() - expected.checks, expected.checks - seen.failed.keys()
    faults = [f"{each} fails as well: {seen.failed[each]}" for each in sorted(more)]
    return "; ".join(faults + [f"{each} passes, and reasons.py says that it does not" for each in sorted(fewer)])


def _said(seen: Seen) -> str:
    return "; ".join(f"{check}: {why}" for check, why in seen.failed.items())
