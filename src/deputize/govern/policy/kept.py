"""A dict that forgets its oldest entries: what is kept can always be worked out again."""

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Kept(Generic[K, V]):
    __slots__ = ("_items", "_most", "get")

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: dict[K, V] = {}
        self.get = self._items.get

    def keep(self, key: K, value: V) -> V:
        if len(self._items) >= self._most:
            del self._items[next(iter(self._items))]
        self._items[key] = value
        return value

    def __len__(self) -> int:
        return len(self._items)
