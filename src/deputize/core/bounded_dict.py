"""Bound a cache: a dict that drops its oldest entries, all of which can be computed again."""

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(Generic[K, V]):
    """A dict of limited weight. Entries weigh 1, or more if callers choose how large they are."""

    __slots__ = ("_items", "_max_weight", "_weight", "_weights", "get")

    def __init__(self, max_weight: int) -> None:
        self._max_weight = max_weight
        self._items: dict[K, V] = {}
        # Only of entries that weigh more than 1, which are few.
        self._weights: dict[K, int] = {}
        self._weight = 0
        self.get = self._items.get

    def put(self, key: K, value: V, weight: int = 1) -> V:
        """Store the value, unless it alone is too heavy, and return it."""
        if key in self._items:
            self._drop(key)
        if weight > self._max_weight:
            return value
        while self._weight + weight > self._max_weight:
            self._drop(next(iter(self._items)))
        self._items[key] = value
        self._weight += weight
        if weight > 1:
            self._weights[key] = weight
        return value

    def discard(self, key: K) -> None:
        """Remove an entry, if it is there."""
        if key in self._items:
            self._drop(key)

    def _drop(self, key: K) -> None:
        del self._items[key]
        self._weight -= self._weights.pop(key, 1)

    def __len__(self) -> int:
        return len(self._items)
