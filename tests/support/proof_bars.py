"""Hold the figures of a judge against the bars that its proof declares."""

from collections.abc import Collection, Mapping

from proofs.kit.declarations import get_declaration
from proofs.kit.report import Figure, Verdict, check_bars


def list_missed_bars(proof: str, figures: Mapping[str, Figure]) -> set[str]:
    """List the bars that these figures miss; a part of a proof has only some of its figures."""
    bars = {name: bar for name, bar in get_declaration(proof).full_bars.items() if name in figures}
    return {bar.name for bar in check_bars(Verdict(figures=figures, bars=bars)) if not bar.is_met}


def list_exact_bars(proof: str, *, among: Collection[str]) -> set[str]:
    """List the figures among these that have to be exact: each is a category of what must not happen."""
    return {name for name, (op, _) in get_declaration(proof).full_bars.items() if op == "==" and name in among}
