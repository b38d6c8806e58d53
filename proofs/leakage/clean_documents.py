"""Build documents without secrets and personal data: sentences of this project's pages, and records of a shop."""

import random
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from deputize.core.canonical import canonicalize
from deputize.core.injection.suspicions import find_suspicions
from deputize.evidence.redaction.plan import RedactionPlan

_ROOT: Final = Path(__file__).resolve().parents[2]
# A page that explains how to use a secret or an address quotes one, which is no text to be left alone.
_QUOTES_ONE: Final = re.compile(
    r"@|\d+\.\d+\.\d+\.\d+|://\S+:\S+@|(?i:(?:password|secret|token|key|bearer|cookie|credential)s?\W{0,3}[=:])"
)
# Quotes what an attack looks like.
_ATTACK_PAGE: Final = "notice-injection-attempts.md"
_GOODS: Final = ("lamp", "chair", "desk", "kettle", "router", "cable", "printer", "monitor", "shelf", "battery")
_STATES: Final = ("open", "paid", "shipped", "returned", "cancelled")
_UNDESCRIBED: Final = RedactionPlan(True)


def build_clean_documents(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Build so many documents: half of them prose, half records with ids, times, digests, sizes and prices."""
    sentences = _collect_sentences()
    return [_build_note(rng, sentences) if number % 2 else _build_record(rng) for number in range(count)]


def count_changed(documents: Sequence[dict[str, Any]]) -> int:
    """Count the documents in which the engine redacts anything."""
    return sum(bool(_UNDESCRIBED.apply(each)[1]) for each in documents)


def count_suspected(documents: Sequence[dict[str, Any]]) -> int:
    """Count the documents in which anything looks like an injection attempt."""
    return sum(bool(find_suspicions(each, canonicalize(each))) for each in documents)


def _collect_sentences() -> list[str]:
    """Collect sentences of prose, without those that quote an address, or give a value to the name of a secret."""
    files = sorted(file for file in (_ROOT / "docs").rglob("*.md") if file.name != _ATTACK_PAGE)
    text = "\n\n".join(file.read_text() for file in files)
    text = re.sub(r"(?s)```.*?```", "\n\n", text)
    sentences = re.split(r"(?<=[.!?])\s|\n\n|\n[-|#>]", text)
    return [each.strip() for each in sentences if 40 <= len(each.strip()) <= 400 and not _QUOTES_ONE.search(each)]


def _build_note(rng: random.Random, sentences: Sequence[str]) -> dict[str, Any]:
    return {"title": rng.choice(sentences)[:80], "text": " ".join(rng.choices(sentences, k=rng.randrange(1, 5)))}


def _build_record(rng: random.Random) -> dict[str, Any]:
    digest, day = rng.randbytes(32).hex(), f"2026-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"
    return {
        "id": str(uuid.UUID(int=rng.getrandbits(128), version=4)),
        "order": f"A-{rng.randrange(10**7)}",
        "invoice": f"2026-{rng.randrange(10**6):06d}",
        "at": f"{day}T{rng.randrange(24):02d}:{rng.randrange(60):02d}:00Z",
        "epoch_ms": 1_760_000_000_000 + rng.randrange(10**9),
        "sha256": digest,
        "commit": digest[:40],
        "version": f"{rng.randrange(9)}.{rng.randrange(30)}.{rng.randrange(99)}",
        "lines": [
            {"sku": f"{rng.choice(_GOODS)[:3].upper()}-{rng.randrange(10**5)}", "name": rng.choice(_GOODS), "count": 2}
            for _ in range(rng.randrange(1, 4))
        ],
        "total": f"{rng.randrange(10**6) / 100:.2f} EUR",
        "status": rng.choice(_STATES),
        "note": f"{rng.randrange(99)} pieces of {rng.choice(_GOODS)} on {day}, {rng.randrange(10**10)} bytes, "
        f"{rng.randrange(1000)} x {rng.randrange(1000)} mm, batch {rng.randrange(10**8)}",
        "path": f"/files/{rng.choice(_GOODS)}/{digest[:12]}.json",
        "url": f"https://shop.example/orders/{rng.randrange(10**6)}?page={rng.randrange(9)}&limit=100",
    }
