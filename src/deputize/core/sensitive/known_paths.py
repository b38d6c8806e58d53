"""Tell which paths of files an error may name.

A path that the caller sent is the point of most errors about files, and no news to the caller; neither is what lies in
the folders that a server was given to work on. `text.py` hides all other paths.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

# With more text than this, no path of the arguments is known.
_MAX_TEXT_LENGTH: Final = 65_536
# The server chose how many paths its error has: the rest of them is not known.
_MAX_LOOKUPS: Final = 500
# Punctuation of the sentence that a path ends.
_ENDINGS: Final = ".!?:"


class KnownPaths:
    """The paths that an error may name: those that the caller sent, and what is in folders that the settings name.

    Only what failed and names a path looks anything up here.
    """

    __slots__ = ("_arguments", "_find_folders", "_folders", "_lookups", "_texts")

    def __init__(self, arguments: Any, find_folders: Callable[[], Sequence[str]] = tuple) -> None:
        self._arguments = arguments
        self._find_folders = find_folders
        self._texts: list[str] | None = None
        self._folders: Sequence[str] = ()
        self._lookups = 0

    def has(self, path: str) -> bool:
        """Tell whether the caller sent this path, also as a part of a longer text, or it is in one of the folders."""
        if self._texts is None:
            texts, size = [], 0
            for each in _iterate_texts(self._arguments):
                size += len(each)
                texts.append(each)
                if size > _MAX_TEXT_LENGTH:
                    texts.clear()
                    break
            self._texts, self._folders = texts, self._find_folders()
        self._lookups += 1
        path = path.rstrip(_ENDINGS)
        if not path or self._lookups > _MAX_LOOKUPS:
            return False
        if any(path in each for each in self._texts):
            return True
        steps = path.replace("\\", "/").split("/")
        return ".." not in steps and any(path == each or path.startswith(f"{each}/") for each in self._folders)


def _iterate_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield str(name)
            yield from _iterate_texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _iterate_texts(each)
