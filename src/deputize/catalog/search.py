"""Keyword search over the tools one caller may see: BM25 with weighted fields, an exact name always first.

The index follows the snapshots of one tenant and only looks at tools that changed. How rare a word is, is
counted among the visible tools alone, so that nothing can be learned about hidden ones.
"""

import asyncio
import math
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache
from heapq import nlargest
from itertools import islice
from typing import Any

import orjson

from deputize.catalog.snapshot import TenantTools, ToolEntry, ToolVersion

_K1 = 1.2
_B = 0.5
# What a tool's text weighs on average. A constant, so that ranking one caller's tools tells nothing of others'.
_USUAL_LENGTH = 60.0
_WEIGHTS = {"name": 5.0, "search_hint": 3.0, "tags": 3.0, "title": 3.0, "namespace": 2.0, "description": 1.0}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\dA-Za-z_]+")
_STOP = frozenset(
    {"a", "an", "and", "as", "at", "be", "by", "for", "from", "how", "i", "in", "is", "it", "me", "my", "of", "on",
     "or", "some", "that", "the", "this", "to", "with"}
)  # fmt: skip
_MOST_WORDS = 24
_LONGEST_QUERY = 400
_SHORTEST_PREFIX = 3
_MOST_LONGER = 200
_STEP = 25


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    name: str
    version: str
    score: float
    exact: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What was found. Nothing found is an answer too, with a reason a program can read."""

    matches: tuple[Match, ...]

    @property
    def reason(self) -> str | None:
        return None if self.matches else "no_match"

    def to_json(self) -> dict[str, Any]:
        matches = [
            {"name": each.name, "version": each.version, "score": round(each.score, 3), "exact": each.exact}
            for each in self.matches
        ]
        return {"matches": matches} if matches else {"matches": [], "reason": self.reason}


def words(text: str) -> list[str]:
    """The words of a text or name: split at case changes and signs, lower-cased, plurals made singular."""
    return [word for word in map(_plain, _WORD.findall(text)) if word]


@lru_cache(maxsize=65_536)
def _plain(raw: str) -> str:
    """One word as it is indexed; empty for a word that says nothing."""
    word = raw.lower()
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 4 and word.endswith(("ches", "shes", "sses", "xes")):
        word = word[:-2]
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return "" if word in _STOP else word


class SearchIndex:
    """The words of one tenant's tools. Brought up to date by `follow` or `catch_up`, asked by `search`."""

    def __init__(self) -> None:
        self._entries: dict[str, ToolEntry] = {}
        self._versions: dict[str, ToolVersion] = {}
        self._words: dict[str, tuple[str, ...]] = {}
        # For each word, what it adds to the score of each tool that has it, before rarity.
        self._postings: dict[str, dict[str, float]] = {}
        self._vocabulary: list[str] | None = None
        self._snapshot: TenantTools | None = None
        self._turn = asyncio.Lock()

    def follow(self, snapshot: TenantTools) -> None:
        """Index what differs from the snapshot followed before; a tool that is the same object is passed by."""
        for _ in self._changes(snapshot):
            pass

    async def catch_up(self, snapshot: TenantTools) -> None:
        """`follow` in small steps, for a gateway that must go on serving while many tools are indexed."""
        async with self._turn:
            for step, _ in enumerate(self._changes(snapshot)):
                if step % _STEP == _STEP - 1:
                    await asyncio.sleep(0)

    def _changes(self, snapshot: TenantTools) -> Iterator[str]:
        if snapshot is self._snapshot:
            return
        known = self._entries
        changed = [entry for name, entry in snapshot.tools.items() if known.get(name) is not entry]
        gone = [name for name in known if name not in snapshot.tools]
        for name in gone:
            self._remove(name)
            del known[name]
            yield name
        for entry in changed:
            self._replace(entry)
            known[entry.name] = entry
            yield entry.name
        self._snapshot = snapshot

    def _replace(self, entry: ToolEntry) -> None:
        before, latest = self._versions.get(entry.name), entry.latest
        if latest is not None and before is not None and before.digest == latest.digest:
            self._versions[entry.name] = latest
            return
        self._remove(entry.name)
        if latest is not None:
            self._add(entry.name, latest)

    def _add(self, name: str, version: ToolVersion) -> None:
        weights = _weighted(orjson.loads(version.raw))
        length = _K1 * (1 - _B + _B * sum(weights.values()) / _USUAL_LENGTH)
        for word, weight in weights.items():
            self._postings.setdefault(word, {})[name] = weight * (_K1 + 1) / (weight + length)
        self._versions[name] = version
        self._words[name] = tuple(weights)
        self._vocabulary = None

    def _remove(self, name: str) -> None:
        self._versions.pop(name, None)
        for word in self._words.pop(name, ()):
            holders = self._postings[word]
            del holders[name]
            if not holders:
                del self._postings[word]
        self._vocabulary = None

    def search(self, query: str, visible: Collection[str], *, limit: int = 10) -> Found:
        """The best matches among the visible tools, best first."""
        allowed = visible if isinstance(visible, Set | Mapping) else frozenset(visible)
        query = query.strip()[:_LONGEST_QUERY]
        scores: dict[str, float] = {}
        for word in dict.fromkeys(words(query)[:_MOST_WORDS]):
            hits = self._hits(word, allowed)
            rarity = math.log(1 + (len(allowed) - len(hits) + 0.5) / (len(hits) + 0.5))
            for name, gain in hits.items():
                scores[name] = scores.get(name, 0.0) + rarity * gain
        exact = self._exact(query)
        if exact is not None and exact in allowed:
            scores[exact] = scores.get(exact, 0.0)
        worst = min(nlargest(limit, scores.values()), default=0.0)
        good = [(name, score) for name, score in scores.items() if score >= worst or name == exact]
        good.sort(key=lambda item: (item[0] != exact, -item[1], item[0]))
        return Found(
            matches=tuple(
                Match(name=name, version=self._versions[name].version, score=score, exact=name == exact)
                for name, score in good[:limit]
            )
        )

    def _exact(self, query: str) -> str | None:
        found = self._snapshot.find(query) if self._snapshot is not None else None
        return found.name if found is not None and found.name in self._versions else None

    def _hits(self, word: str, visible: Collection[str]) -> dict[str, float]:
        """What the word adds to each visible tool; where none has it, what the words it begins add, at half."""
        found = {name: gain for name, gain in self._postings.get(word, {}).items() if name in visible}
        if found or len(word) < _SHORTEST_PREFIX:
            return found
        if self._vocabulary is None:
            self._vocabulary = sorted(self._postings)
        left = _MOST_LONGER
        for longer in islice(self._vocabulary, bisect_left(self._vocabulary, word), None):
            if not longer.startswith(word) or not left:
                break
            hits = {name: gain for name, gain in self._postings[longer].items() if name in visible}
            # Words of hidden tools are passed over: they must not take the place of any that are seen.
            left -= bool(hits)
            for name, gain in hits.items():
                found[name] = max(found.get(name, 0.0), gain / 2)
        return found


def _weighted(contract: dict[str, Any]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for name, weight in _WEIGHTS.items():
        value = contract.get(name, "")
        texts: Iterable[str] = value if isinstance(value, list) else (value,)
        for text in texts:
            for word in words(text):
                weights[word] = weights.get(word, 0.0) + weight
    return weights
