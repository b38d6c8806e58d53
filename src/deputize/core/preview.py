"""What a tool says beforehand about a call: what it would change, and whether it could.

Returned by an author's preview, read and named here, shown to whoever decides. Two looks at the same world have the
same digest, in whatever order they list things; what a contract calls volatile is left out of it.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints

from deputize.core.canonical import canonical
from deputize.core.frozen import frozen

LARGEST_PREVIEW: Final = 65_536
MOST_PARTS: Final = 1000
# In a pointer: each element of a list, each field of an object.
EACH: Final = "*"
# Lists whose order means nothing: a query that asks for none returns them as it likes.
_UNORDERED: Final = ("changes", "resources", "preconditions")


@frozen
class Preview:
    """What a tool's preview returns, all of it plain JSON.

    `changes` are `{resource, op, scope}` and, where it is known, `before`, `after` and `count`. `resources` names
    everything that would be touched, also what only follows. `preconditions` are `{name, holds, detail}`; one that does
    not hold refuses the call. `impact` is whatever else helps a person to decide. `guards` are shown to nobody: the
    tool finds them in `context.guards` when the call is made, to compare them with what it meets then, like an ETag.
    """

    changes: Sequence[Mapping[str, Any]] = ()
    resources: Sequence[str] = ()
    preconditions: Sequence[Mapping[str, Any]] = ()
    impact: Mapping[str, Any] = field(default_factory=dict)
    guards: Mapping[str, Any] = field(default_factory=dict)


class _Part(BaseModel):
    # What is no number stays none, and is refused for it, instead of turning into nothing.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class Change(_Part):
    resource: Annotated[str, StringConstraints(min_length=1, max_length=120)]
    op: Literal["create", "update", "delete"]
    scope: Annotated[str, StringConstraints(min_length=1, max_length=240)] = "*"
    before: Any = None
    after: Any = None
    count: Annotated[int, Field(ge=0, strict=True)] | None = None


class Precondition(_Part):
    """`holds` is true or false and nothing that could be taken for it: `"false"` would be."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=120)]
    holds: StrictBool
    detail: Annotated[str, StringConstraints(max_length=500)] = ""


class ReadPreview(_Part):
    """A preview whose form is right."""

    changes: tuple[Change, ...] = ()
    resources: tuple[Annotated[str, StringConstraints(min_length=1, max_length=400)], ...] = ()
    preconditions: tuple[Precondition, ...] = ()
    impact: dict[str, Any] = Field(default_factory=dict)
    guards: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, said: Preview) -> Self:
        for name in _UNORDERED:
            parts = getattr(said, name)
            if not isinstance(parts, list | tuple) or len(parts) > MOST_PARTS:
                raise ValueError(f"{name} is a list of at most {MOST_PARTS}")
        parted = {name: [_plain(each) for each in getattr(said, name)] for name in _UNORDERED}
        return cls.model_validate({**parted, "impact": _plain(said.impact), "guards": _plain(said.guards)})

    def document(self) -> dict[str, Any]:
        """As plain JSON. Only what may be unknown is left out, so that null can mean that there is nothing."""
        changes = [each.model_dump(mode="json", exclude_unset=True) | {"scope": each.scope} for each in self.changes]
        return {**self.model_dump(mode="json"), "changes": changes}


def _plain(said: Any) -> Any:
    return dict(said) if isinstance(said, Mapping) else said


def preview_digest(key: bytes, document: Mapping[str, Any], volatile: Sequence[str] = ()) -> bytes:
    """Names what a preview says. Keyed: its values may be few enough to be guessed from a plain hash."""
    kept: dict[str, Any] = dict(document)
    for pointer in volatile:
        kept = _without(kept, _steps(pointer))
    for name in _UNORDERED:
        kept[name] = sorted(canonical({"": each}).decode() for each in kept.get(name, ()))
    return hmac.digest(key, b"preview\0" + canonical(kept), "sha256")


def _steps(pointer: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _without(value: Any, steps: Sequence[str]) -> Any:
    """A copy without what the steps lead to. An element of a list leaves its place behind: how many counts."""
    if not steps:
        return None
    first, rest = steps[0], steps[1:]
    if isinstance(value, Mapping):
        named = {name for name in value if first in (EACH, name)}
        if not rest:
            return {name: each for name, each in value.items() if name not in named}
        return {name: _without(each, rest) if name in named else each for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without(each, rest) if first in (EACH, str(n)) else each for n, each in enumerate(value)]
    return value
