"""What servers wrote, made visible for whoever reviews it: nothing hidden, and no letter that passes for another.

Above: `flags.py`, `diff.py`. Below: `core/plain.py`, which makes visible what cannot be seen; here is added what can be
seen and is taken for something else.
"""

from deputize.catalog.drift.names import mixed
from deputize.core.plain import plain


def shown(text: str, *, letters: bool = False) -> str:
    """The text on one line. Words that mix look-alike letters are spelt out, with `letters` everything not ASCII is."""
    if text.isascii():
        return _seen(text)
    spans = [(0, len(text))] if letters else list(mixed(text))
    pieces: list[str] = []
    done = 0
    for start, end in spans:
        pieces += [_seen(text[done:start]), _spelt(text[start:end])]
        done = end
    return "".join((*pieces, _seen(text[done:])))


def _seen(text: str) -> str:
    return plain(text, len(text) * 10)


def _spelt(text: str) -> str:
    """Backslashes of the text are doubled first, so that none of its own look like those that come after."""
    return "".join(
        _seen(each) if each.isascii() else each.encode("ascii", "backslashreplace").decode() for each in text
    )
