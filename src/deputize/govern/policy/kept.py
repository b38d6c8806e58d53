"""A dict that forgets its oldest entries: what is kept can always be worked out again."""

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Kept(Generic[K, V]):
    """All of it together weighs at most `most`. Callers choose how large an entry is, so large ones weigh more."""

    __slots__ = ("_items", "_most", "_weighs", "_weights", "get")

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: dict[K, V] = {}
        # Only of those that weigh more than one, which are few.
        self._weights: dict[K, int] = {}
        self._weighs = 0
        self.get = self._items.get

    def keep(self, key: K, value: V, weight: int = 1) -> V:
        """The value, kept unless it alone would be too much."""
        if key in self._items:
            self._drop(key)
        if weight > self._most:
            return value
        while self._weighs + weight > self._most:
            self._drop(next(iter(self._items)))
        self._items[key] = value
        self._weighs += weight
        if weight > 1:
            self._weights[key] = weight
        return value

    def _drop(self, key: K) -> None:
        del self._items[key]
        self._weighs -= self._weights.pop(key, 1)

    def __len__(self) -> int:
        return len(self._items)
