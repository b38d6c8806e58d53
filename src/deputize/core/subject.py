"""Name the subject of a token as one text: its issuer and its `sub` claim together identify a person or an agent.

`issuer=https://idp.example ann` is the subject `ann` of that issuer: no issuer's name contains a space, so the first
one ends it. The subjects of a tenant's primary issuer are stored by their bare names, such as `ann`. A bare name never
begins like a qualified one, so no two subjects are stored under the same text.
"""

import unicodedata
from typing import Final

ISSUER_PREFIX: Final = "issuer="
# Agents have a namespace of their own, so that no agent shares the pseudonym of a person.
AGENT_PREFIX: Final = "agent="
# What stands in place of a person who was erased.
ERASED_PREFIX: Final = "erased="
_RESERVED_PREFIXES: Final = (ISSUER_PREFIX, AGENT_PREFIX, ERASED_PREFIX)


def qualify_subject(issuer: str, name: str) -> str:
    """Combine an issuer and one of its subjects."""
    return f"{ISSUER_PREFIX}{issuer} {name}"


def build_subject(issuer: str, name: str, primary_issuer: str | None) -> str:
    """Build the text that a subject is stored under: bare for the primary issuer, qualified for all others."""
    # Names of people are compared without case and compatibility forms, so the prefixes are too.
    folded_name = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    if issuer == primary_issuer and not folded_name.startswith(_RESERVED_PREFIXES):
        return name
    return qualify_subject(issuer, name)


def parse_subject(subject: str) -> tuple[str | None, str]:
    """Split a stored subject into its issuer, None for the primary one, and the issuer's own name for it."""
    issuer, space, name = subject.removeprefix(ISSUER_PREFIX).partition(" ")
    return (issuer, name) if subject.startswith(ISSUER_PREFIX) and space else (None, subject)
