"""What an MCP server says of itself and its tools, as words: nothing here speaks to one.

What of it counts as said, and what is only the way it was written, is told in `core/declared.py`.
"""

from typing import Any

from deputize.core.canonical import digest
from deputize.core.declared import digest_of, without_asides
from deputize.core.frozen import frozen

# What a name stands for under which a server declares several tools that differ: nobody can have agreed to it.
AMBIGUOUS = "ambiguous"


@frozen
class Definition:
    """One tool as its server declares it. `said` is what was received, less what means nothing; the digest is over what
    it means, so the order of names and the way it was formatted change nothing.
    """

    name: str
    said: dict[str, Any]
    digest: str

    @classmethod
    def of(cls, said: dict[str, Any]) -> "Definition":
        """From an entry of `tools/list` as it came. Raises `NotCanonical` for what JSON cannot say."""
        return cls(name=str(said["name"]), said=without_asides(said), digest=digest_of(said))


@frozen
class Discovered:
    """A server as it was found: what it calls itself, how it wants to be used, and all its tools, in its order. What it
    declared that is no definition at all is `refused`, a sentence for each.
    """

    protocol: str
    title: str
    version: str
    instructions: str
    tools: tuple[Definition, ...]
    refused: tuple[str, ...] = ()

    @property
    def instructions_digest(self) -> str:
        return digest({"instructions": self.instructions})

    @property
    def digests(self) -> dict[str, str]:
        """Each tool's digest by its name; where a name is declared twice in different ways, none that was agreed to."""
        found: dict[str, str] = {}
        for each in self.tools:
            same = found.setdefault(each.name, each.digest) == each.digest
            found[each.name] = each.digest if same else AMBIGUOUS
        return found
