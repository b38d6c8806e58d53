"""Find what the values of an argument have in common: a choice of texts, domains, hosts, folders or a range."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal
from urllib.parse import urlsplit

from deputize.core.value_types import frozen
from deputize.govern.observation.observed_call import FactValue, ObservedCall, find_share
from deputize.govern.observation.oddities import MAX_RARE, MIN_CALLS

Shape = Literal["choice", "domain", "host", "folder", "free"]
# Values of which a choice may consist; more are no choice but any value.
_MAX_KEYS: Final[Mapping[Shape, int]] = {"choice": 20, "domain": 40, "host": 40, "folder": 40, "free": 0}
# Parts of paths under which secrets are kept.
SENSITIVE_PARTS: Final = (
    "/.env", "/.ssh", "/.aws", "/.netrc", "/.npmrc", "/.pgpass", "/.git-credentials", "id_rsa", "id_ed25519",
    "/credentials", "/etc/passwd", "/etc/shadow", "/etc/sudoers",
)  # fmt: skip
_MOST: Final = 0.95
# With a larger share of rare values, rare ones are usual.
_MAX_RARE_SHARE: Final = 0.03
FOLDER_DEPTH: Final = 3


@frozen
class TextShape:
    """The shape of a text argument, and how often each key occurs, such as each domain."""

    shape: Shape
    counts: Counter[str]

    def is_rare(self, text: str) -> bool:
        """Tell whether a text has a key that hardly any other has, while all others are of a few kinds."""
        return self.shape != "free" and self.counts[read_key(self.shape, text)] <= MAX_RARE


def read_texts(value: FactValue | None) -> tuple[str, ...]:
    """Return the texts of a fact: one, those of a list, or none."""
    if isinstance(value, tuple):
        return value
    return (value,) if isinstance(value, str) else ()


def read_key(shape: Shape, text: str) -> str:
    """Read from a text what its shape is about."""
    if shape == "domain":
        return text.rpartition("@")[2].lower()
    if shape == "host":
        return _read_host(text)
    if shape == "folder":
        return ".." if ".." in text else "/".join(text.split("/")[:-1][:FOLDER_DEPTH])
    return text


def find_text_shape(calls: Sequence[ObservedCall], name: str) -> TextShape:
    """Find the shape of a text or list argument in the calls of one tool."""
    texts = _list_texts(calls, name)
    shape = _guess_shape(texts)
    counts = Counter(read_key(shape, text) for text in texts)
    rare_count = sum(count for count in counts.values() if count <= MAX_RARE)
    frequent_keys = sum(count > MAX_RARE for count in counts.values())
    if len(texts) < MIN_CALLS or frequent_keys > _MAX_KEYS[shape] or rare_count > len(texts) * _MAX_RARE_SHARE:
        return TextShape(shape="free", counts=Counter())
    return TextShape(shape=shape, counts=counts)


def guess_shape(calls: Sequence[ObservedCall], name: str) -> Shape:
    """Guess the shape of an argument from any number of calls, though its keys may be rare."""
    return _guess_shape(_list_texts(calls, name))


def list_numbers(calls: Iterable[ObservedCall], name: str) -> list[int]:
    """List the numbers of an argument, sorted; a boolean is none."""
    values = (call.facts.get(name) for call in calls)
    return sorted(each for each in values if isinstance(each, int) and not isinstance(each, bool))


def make_range_test(numbers: Sequence[int]) -> Callable[[int], bool]:
    """Make a function that tells whether a number is far from these, which are sorted."""
    high, low = find_share(numbers, 0.95), find_share(numbers, 0.05)
    highest = max(3 * high, high + 10)
    lowest = min(0, low) if low >= 0 else 3 * low
    return lambda number: number > highest or number < lowest


def iter_fact_names(calls: Iterable[ObservedCall]) -> Iterator[str]:
    """Yield the name of every argument that occurs, in order."""
    yield from sorted({name for call in calls for name in (*call.facts, *call.secret_facts)})


def _list_texts(calls: Sequence[ObservedCall], name: str) -> list[str]:
    return [text for call in calls for text in read_texts(call.facts.get(name))]


def _guess_shape(texts: Sequence[str]) -> Shape:
    tests: tuple[tuple[Shape, Callable[[str], bool]], ...] = (
        ("host", lambda text: "://" in text),
        ("domain", lambda text: text.count("@") == 1 and " " not in text and "/" not in text),
        ("folder", lambda text: "/" in text and " " not in text),
    )
    for shape, test in tests:
        if texts and sum(map(test, texts)) >= len(texts) * _MOST:
            return shape
    return "choice"


def _read_host(text: str) -> str:
    try:
        return (urlsplit(text).hostname or "").lower()
    except ValueError:
        return text
