"""Make hidden characters and look-alike letters of a server's texts visible to reviewers.

`core/display_text.py` escapes invisible characters; this module also escapes letters that look like others.
"""

from deputize.catalog.drift.lookalike_names import find_mixed_script
from deputize.core.display_text import to_display_text


def reveal_hidden_text(text: str, *, escape_non_ascii: bool = False) -> str:
    """Escape a text on one line: words that mix look-alike letters, or with `escape_non_ascii` all non-ASCII."""
    if text.isascii():
        return _escape_invisible(text)
    spans = [(0, len(text))] if escape_non_ascii else list(find_mixed_script(text))
    pieces: list[str] = []
    position = 0
    for start, end in spans:
        pieces += [_escape_invisible(text[position:start]), _escape_non_ascii(text[start:end])]
        position = end
    return "".join((*pieces, _escape_invisible(text[position:])))


def _escape_invisible(text: str) -> str:
    return to_display_text(text, len(text) * 10)


def _escape_non_ascii(text: str) -> str:
    """Escape non-ASCII characters; the text's own backslashes are doubled, so that they cannot imitate an escape."""
    return "".join(
        _escape_invisible(each) if each.isascii() else each.encode("ascii", "backslashreplace").decode()
        for each in text
    )
