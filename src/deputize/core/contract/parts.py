"""Define what the parts of a contract share: their base classes, and the forms of names and texts."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, StringConstraints, model_serializer

Schema = dict[str, Any]

_WORD = r"^[a-z](?:_?[a-z0-9])*$"
_TOOL_REF = r"^[a-z](?:_?[a-z0-9])*\.[a-z](?:_?[a-z0-9])*$"
_SEMVER = (
    r"^(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})"
    r"(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$"
)
# A scope of OAuth that begins with the kind of what is permitted, as in filesystem:read:/data.
_PERMISSION = r"^[a-z_]+:[\x21\x23-\x5B\x5D-\x7E]+$"
_SECRET = r"^[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)*$"
Word = Annotated[str, StringConstraints(pattern=_WORD, max_length=48)]
ToolRef = Annotated[str, StringConstraints(pattern=_TOOL_REF, max_length=97)]
SemVer = Annotated[str, StringConstraints(pattern=_SEMVER, max_length=64)]
Text = Annotated[str, StringConstraints(max_length=2000)]
Permission = Annotated[str, StringConstraints(pattern=_PERMISSION, max_length=240)]
# No dots: a name is a path in a vault and must not climb.
SecretName = Annotated[str, StringConstraints(pattern=_SECRET, max_length=200)]


class ContractPart(BaseModel):
    """A part of a contract: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Validate the copy as a new object, so that it does not keep the cached digest and names of the original."""
        return type(self).model_validate(self.model_dump() | dict(update or {}))


class SparsePart(ContractPart):
    """A part whose unset fields are left out when it is serialized, so that later releases can add fields to it."""

    @model_serializer(mode="wrap")
    def _serialize_set_fields(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if value is not None}


def omit_unset_fields(part: BaseModel, document: dict[str, Any], *fields: str) -> dict[str, Any]:
    """Leave out unset fields that a later release added, so that contracts without them keep their digest and the
    previous release can read them.
    """
    defaults = {name: type(part).model_fields[name].default for name in fields}
    return {
        name: value
        for name, value in document.items()
        if name not in defaults or value not in _list_forms(defaults[name])
    }


def _list_forms(default: Any) -> tuple[Any, ...]:
    """List the forms in which a default is serialized: an empty tuple is an empty list in JSON."""
    return (default, []) if default == () else (default,)
