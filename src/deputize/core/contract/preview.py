"""Define the preview of a call: what it would change, and whether it can succeed.

A tool's preview function returns it, and approvers see it. Two previews of the same state have the same digest, in
whatever order they list changes; parts that the contract calls volatile do not count.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints

from deputize.core.canonical import canonicalize
from deputize.core.value_types import frozen

MAX_PREVIEW_BYTES: Final = 65_536
MAX_PARTS: Final = 1000
# In a pointer: each element of a list, each field of an object.
WILDCARD: Final = "*"
# Lists without order: a query without ORDER BY returns them in any order.
_UNORDERED_FIELDS: Final = ("changes", "resources", "preconditions")


@frozen
class Preview:
    """What a tool's preview returns, all of it plain JSON.

    `changes` are `{resource, op, scope}` and, where it is known, `before`, `after` and `count`. `resources` names
    everything that would be touched, also indirectly. `preconditions` are `{name, holds, detail}`; one that does not
    hold refuses the call. `impact` is whatever else helps an approver to decide. `guards` are never shown: the tool
    finds them in `context.guards` when it runs, to compare them with the state at that time, like an ETag.
    """

    changes: Sequence[Mapping[str, Any]] = ()
    resources: Sequence[str] = ()
    preconditions: Sequence[Mapping[str, Any]] = ()
    impact: Mapping[str, Any] = field(default_factory=dict)
    guards: Mapping[str, Any] = field(default_factory=dict)


class _PreviewPart(BaseModel):
    # NaN and infinities stay what they are and are rejected later, instead of becoming null.
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")


class PreviewChange(_PreviewPart):
    """One change that the call would make."""

    resource: Annotated[str, StringConstraints(min_length=1, max_length=120)]
    op: Literal["create", "update", "delete"]
    scope: Annotated[str, StringConstraints(min_length=1, max_length=240)] = "*"
    before: Any = None
    after: Any = None
    count: Annotated[int, Field(ge=0, strict=True)] | None = None


class PreviewPrecondition(_PreviewPart):
    """A condition of success. `holds` is strictly a boolean: the string `"false"` would count as true."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=120)]
    holds: StrictBool
    detail: Annotated[str, StringConstraints(max_length=500)] = ""


class ValidPreview(_PreviewPart):
    """A preview with a valid form."""

    changes: tuple[PreviewChange, ...] = ()
    resources: tuple[Annotated[str, StringConstraints(min_length=1, max_length=400)], ...] = ()
    preconditions: tuple[PreviewPrecondition, ...] = ()
    impact: dict[str, Any] = Field(default_factory=dict)
    guards: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def from_preview(cls, preview: Preview) -> Self:
        """Validate what a preview function returned."""
        for name in _UNORDERED_FIELDS:
            parts = getattr(preview, name)
            if not isinstance(parts, list | tuple) or len(parts) > MAX_PARTS:
                raise ValueError(f"{name} must be a list of at most {MAX_PARTS} elements")
        lists = {name: [_to_plain(each) for each in getattr(preview, name)] for name in _UNORDERED_FIELDS}
        return cls.model_validate({**lists, "impact": _to_plain(preview.impact), "guards": _to_plain(preview.guards)})

    def to_document(self) -> dict[str, Any]:
        """Render as plain JSON. Only unset fields are left out, so that null can mean that there is no value."""
        changes = [each.model_dump(mode="json", exclude_unset=True) | {"scope": each.scope} for each in self.changes]
        return {**self.model_dump(mode="json"), "changes": changes}


def _to_plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def compute_preview_digest(key: bytes, document: Mapping[str, Any], volatile: Sequence[str] = ()) -> bytes:
    """Digest a preview. The digest is keyed, because its values may be few enough to guess from a plain hash."""
    content: dict[str, Any] = dict(document)
    for pointer in volatile:
        content = _remove_path(content, _parse_pointer(pointer))
    for name in _UNORDERED_FIELDS:
        content[name] = sorted(canonicalize({"": each}).decode() for each in content.get(name, ()))
    return hmac.digest(key, b"preview\0" + canonicalize(content), "sha256")


def _parse_pointer(pointer: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _remove_path(value: Any, steps: Sequence[str]) -> Any:
    """Copy a value without what the steps lead to. An element of a list becomes None, so that the length counts."""
    if not steps:
        return None
    first, rest = steps[0], steps[1:]
    if isinstance(value, Mapping):
        matches = {name for name in value if first in (WILDCARD, name)}
        if not rest:
            return {name: each for name, each in value.items() if name not in matches}
        return {name: _remove_path(each, rest) if name in matches else each for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_remove_path(each, rest) if first in (WILDCARD, str(n)) else each for n, each in enumerate(value)]
    return value
