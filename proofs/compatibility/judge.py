"""Judge what the checker said about a pair of schemas, by values and without its rules."""

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proofs.compatibility.instances import ValueSampler
from proofs.compatibility.schema_pairs import SchemaPair
from proofs.compatibility.small_models import compile_schema, find_witness

# Return "patch", "minor" or "major" for the old and the new schema of an input.
Checker = Callable[[dict[str, Any], dict[str, Any]], str]
_SAMPLES = 30


@dataclass(slots=True)
class Findings:
    """What was found about all pairs; each list holds the wrong ones as text."""

    breaks_called_compatible: list[str] = field(default_factory=list)
    additions_called_patches: list[str] = field(default_factory=list)
    widened_and_broken: list[str] = field(default_factory=list)
    false_alarms: list[str] = field(default_factory=list)
    pairs: int = 0
    published_pairs: int = 0
    widened_pairs: int = 0
    breaks_with_a_value: int = 0
    undecided_breaks: int = 0
    milliseconds: list[float] = field(default_factory=list)


def judge_pair(pair: SchemaPair, checker: Checker, rng: random.Random, findings: Findings) -> None:
    """Ask the checker about a pair, and look for a value that shows it wrong."""
    began = time.perf_counter()
    level = checker(pair.old, pair.new)
    findings.milliseconds.append((time.perf_counter() - began) * 1000)
    findings.pairs += 1
    findings.published_pairs += pair.origin == "published"
    findings.widened_pairs += pair.is_widened
    value = find_refused_value(pair.old, pair.new, rng)
    text = json.dumps({"old": pair.old, "new": pair.new, "level": level, "value": value})
    if value is not None:
        findings.breaks_with_a_value += 1
        if level != "major":
            findings.breaks_called_compatible.append(text)
        if pair.is_widened:
            findings.widened_and_broken.append(text)
    elif level == "major":
        findings.undecided_breaks += 1
        if pair.is_widened:
            findings.false_alarms.append(text)
    if level == "patch" and find_refused_value(pair.new, pair.old, rng) is not None:
        findings.additions_called_patches.append(text)


def find_refused_value(first: dict[str, Any], second: dict[str, Any], rng: random.Random) -> list[Any] | None:
    """Find a value that the first schema allows and the second refuses: drawn along the first, or a small model."""
    allowing, refusing = compile_schema(first), compile_schema(second)
    sampler = ValueSampler(first, rng)
    for _ in range(_SAMPLES):
        value = sampler.draw()
        if allowing.is_valid(value) and not refusing.is_valid(value):
            return [value]
    witness = find_witness(first, second)
    return None if witness is None else list(witness)
