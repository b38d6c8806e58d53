"""Compare the results in `proofs/results` with the code: a result holds the digests of what its proof covers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson

from proofs.kit.declarations import get_declaration
from proofs.kit.facts import compute_digests

RESULTS: Final = Path(__file__).resolve().parents[1] / "results"


def describe_results(folder: Path = RESULTS) -> Iterator[str]:
    """Say of each stored result whether it passed, and what of the code it covers has changed since."""
    for file in sorted(folder.glob("*.json")):
        result = orjson.loads(file.read_bytes())
        stored, now = result["digests"], compute_digests(file.stem, get_declaration(file.stem).covers)
        changed = sorted(name for name in stored.keys() | now.keys() if stored.get(name) != now.get(name))
        state = f"of earlier code ({', '.join(changed)} changed)" if changed else "of this code"
        yield f"{file.stem}: {'passed' if result['passed'] else 'below its bar'}, {state}"
