"""What a server that lets nobody in says about how to get in: the WWW-Authenticate header of RFC 9110 and RFC 9728.

Pure. Above: `flow.py`, and whoever was refused (`exchange.py` keeps the header as it came).
"""

import re
from typing import Final

from deputize.core.frozen import frozen

MOST_SCOPES: Final = 100
_TOKEN: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_PART: Final = re.compile(
    rf'[\s,]*(?:(?P<name>{_TOKEN})\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s,"]*))|(?P<scheme>{_TOKEN})(?=[\s,]|$))'
)
_ESCAPED: Final = re.compile(r"\\(.)")
# RFC 6749, 3.3.
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")
_SCHEMES: Final = ("bearer",)


@frozen
class Challenge:
    """How the server wants to be asked. `scopes` is empty where it does not say, and so is everything else."""

    resource_metadata: str = ""
    scopes: tuple[str, ...] = ()
    error: str = ""

    @property
    def wants_more(self) -> bool:
        """It knows who asks, and wants a token that allows more."""
        return self.error == "insufficient_scope"


def challenge_of(header: str) -> Challenge:
    """The first challenge for bearer tokens in the header; what cannot be read says nothing."""
    said = _parameters(header)
    return Challenge(
        resource_metadata=said.get("resource_metadata", ""),
        scopes=scopes_of(said.get("scope", "")),
        error=said.get("error", ""),
    )


def scopes_of(text: str) -> tuple[str, ...]:
    """Scopes in a row, each once; what is no scope is left out."""
    found = dict.fromkeys(each for each in text.split() if _SCOPE.fullmatch(each))
    return tuple(found)[:MOST_SCOPES]


def together(before: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """Both, each once: whoever asks for more must not lose what was granted before."""
    return tuple(dict.fromkeys((*before, *more)))


def _parameters(header: str) -> dict[str, str]:
    said: dict[str, str] = {}
    wanted, at = False, 0
    while match := _PART.match(header, at):
        at = match.end()
        if match["scheme"] is not None:
            if wanted:
                break
            wanted = match["scheme"].lower() in _SCHEMES
        elif wanted:
            value = match["bare"] if match["quoted"] is None else _ESCAPED.sub(r"\1", match["quoted"])
            said.setdefault(match["name"].lower(), value)
    return said
