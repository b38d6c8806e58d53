"""Search the tools that one caller may see by keyword: BM25 with weighted fields, an exact name always first.

The index follows one tenant's snapshots and indexes only tools that changed. Word rarity is counted among the visible
tools alone, so that the ranking reveals nothing about hidden ones.
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
# The average weight of a tool's text. It is a constant, so that the ranking reveals nothing about hidden tools.
_USUAL_LENGTH = 60.0
_WEIGHTS = {"name": 5.0, "search_hint": 3.0, "tags": 3.0, "title": 3.0, "namespace": 2.0, "description": 1.0}
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\dA-Za-z_]+")
_STOP_WORDS = frozenset(
    {"a", "an", "and", "as", "at", "be", "by", "for", "from", "how", "i", "in", "is", "it", "me", "my", "of", "on",
     "or", "some", "that", "the", "this", "to", "with"}
)  # fmt: skip
_MAX_WORDS = 24
_MAX_QUERY_LENGTH = 400
_SHORTEST_PREFIX = 3
_MAX_PREFIX_MATCHES = 200
_BATCH_SIZE = 25


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchMatch:
    """A tool found, with its score."""

    name: str
    version: str
    score: float
    is_exact: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchResult:
    """The matches, best first. An empty result carries a machine-readable reason."""

    matches: tuple[SearchMatch, ...]

    @property
    def reason(self) -> str | None:
        return None if self.matches else "no_match"

    def to_json(self) -> dict[str, Any]:
        matches = [
            {"name": each.name, "version": each.version, "score": round(each.score, 3), "exact": each.is_exact}
            for each in self.matches
        ]
        return {"matches": matches} if matches else {"matches": [], "reason": self.reason}


def split_words(text: str) -> list[str]:
    """Split a text or name into words at case changes and punctuation; lower-cased, plurals made singular."""
    return [word for word in map(_normalize_word, _WORD.findall(text)) if word]


@lru_cache(maxsize=65_536)
def _normalize_word(raw: str) -> str:
    """Return a word as it is indexed; empty for a stop word."""
    word = raw.lower()
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 4 and word.endswith(("ches", "shes", "sses", "xes")):
        word = word[:-2]
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return "" if word in _STOP_WORDS else word


class SearchIndex:
    """An inverted index of one tenant's tools. `update` or `update_in_batches` load a snapshot, `search` queries it."""

    def __init__(self) -> None:
        self._entries: dict[str, ToolEntry] = {}
        self._versions: dict[str, ToolVersion] = {}
        self._words: dict[str, tuple[str, ...]] = {}
        # By word and tool, what the word adds to the tool's score, before rarity.
        self._postings: dict[str, dict[str, float]] = {}
        self._vocabulary: list[str] | None = None
        self._snapshot: TenantTools | None = None
        self._update_lock = asyncio.Lock()

    async def update(self, snapshot: TenantTools) -> None:
        """Index what changed since the last snapshot, in small steps, so that the gateway keeps serving meanwhile.

        A tool that is the same object is skipped.
        """
        async with self._update_lock:
            for step, _ in enumerate(self._apply_changes(snapshot)):
                if step % _BATCH_SIZE == _BATCH_SIZE - 1:
                    await asyncio.sleep(0)

    def _apply_changes(self, snapshot: TenantTools) -> Iterator[str]:
        if snapshot is self._snapshot:
            return
        entries = self._entries
        new_entries = [entry for name, entry in snapshot.tools.items() if entries.get(name) is not entry]
        old_names = [name for name in entries if name not in snapshot.tools]
        for name in old_names:
            self._remove_tool(name)
            del entries[name]
            yield name
        for entry in new_entries:
            self._replace_entry(entry)
            entries[entry.name] = entry
            yield entry.name
        self._snapshot = snapshot

    def _replace_entry(self, entry: ToolEntry) -> None:
        before, latest = self._versions.get(entry.name), entry.latest
        if latest is not None and before is not None and before.digest == latest.digest:
            self._versions[entry.name] = latest
            return
        self._remove_tool(entry.name)
        if latest is not None:
            self._add_tool(entry.name, latest)

    def _add_tool(self, name: str, version: ToolVersion) -> None:
        weights = _weigh_words(orjson.loads(version.raw))
        length = _K1 * (1 - _B + _B * sum(weights.values()) / _USUAL_LENGTH)
        for word, weight in weights.items():
            self._postings.setdefault(word, {})[name] = weight * (_K1 + 1) / (weight + length)
        self._versions[name] = version
        self._words[name] = tuple(weights)
        self._vocabulary = None

    def _remove_tool(self, name: str) -> None:
        self._versions.pop(name, None)
        for word in self._words.pop(name, ()):
            holders = self._postings[word]
            del holders[name]
            if not holders:
                del self._postings[word]
        self._vocabulary = None

    def search(self, query: str, visible: Collection[str], *, limit: int = 10) -> SearchResult:
        """Find the best matches among the visible tools, best first."""
        visible_names = visible if isinstance(visible, Set | Mapping) else frozenset(visible)
        query = query.strip()[:_MAX_QUERY_LENGTH]
        scores: dict[str, float] = {}
        for word in dict.fromkeys(split_words(query)[:_MAX_WORDS]):
            hits = self._score_word(word, visible_names)
            rarity = math.log(1 + (len(visible_names) - len(hits) + 0.5) / (len(hits) + 0.5))
            for name, gain in hits.items():
                scores[name] = scores.get(name, 0.0) + rarity * gain
        exact = self._find_exact_name(query)
        if exact is not None and exact in visible_names:
            scores[exact] = scores.get(exact, 0.0)
        worst = min(nlargest(limit, scores.values()), default=0.0)
        candidates = [(name, score) for name, score in scores.items() if score >= worst or name == exact]
        candidates.sort(key=lambda item: (item[0] != exact, -item[1], item[0]))
        return SearchResult(
            matches=tuple(
                SearchMatch(name=name, version=self._versions[name].version, score=score, is_exact=name == exact)
                for name, score in candidates[:limit]
            )
        )

    def _find_exact_name(self, query: str) -> str | None:
        entry = self._snapshot.find_entry(query) if self._snapshot is not None else None
        return entry.name if entry is not None and entry.name in self._versions else None

    def _score_word(self, word: str, visible: Collection[str]) -> dict[str, float]:
        """Score one word for each visible tool; if none has it, score words that begin with it, at half weight."""
        gains = {name: gain for name, gain in self._postings.get(word, {}).items() if name in visible}
        if gains or len(word) < _SHORTEST_PREFIX:
            return gains
        if self._vocabulary is None:
            self._vocabulary = sorted(self._postings)
        matches_left = _MAX_PREFIX_MATCHES
        for longer in islice(self._vocabulary, bisect_left(self._vocabulary, word), None):
            if not longer.startswith(word) or not matches_left:
                break
            hits = {name: gain for name, gain in self._postings[longer].items() if name in visible}
            # Words that only hidden tools have do not count, so that they displace no visible match.
            matches_left -= bool(hits)
            for name, gain in hits.items():
                gains[name] = max(gains.get(name, 0.0), gain / 2)
        return gains


def _weigh_words(contract: dict[str, Any]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for name, weight in _WEIGHTS.items():
        value = contract.get(name, "")
        texts: Iterable[str] = value if isinstance(value, list) else (value,)
        for text in texts:
            for word in split_words(text):
                weights[word] = weights.get(word, 0.0) + weight
    return weights
