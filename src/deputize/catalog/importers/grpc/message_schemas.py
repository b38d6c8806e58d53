"""Build JSON Schemas of messages, by the JSON mapping of Protocol Buffers, with the field names of the .proto file."""

from collections.abc import Mapping
from typing import Any, Final, Literal

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from deputize.catalog.importers.openapi.document import Json, UnsupportedOperation

Direction = Literal["request", "response"]
_MAX_MESSAGES: Final = 300
_LONGEST_DESCRIPTION: Final = 500
# 64-bit integers are text in this mapping, because JSON numbers cannot hold all of them.
_LONG: Final[Json] = {"type": "string", "pattern": "^-?[0-9]{1,20}$"}
_TEXT: Final[Json] = {"type": "string"}
_F: Final = FieldDescriptor
_SCALARS: Final[Mapping[int, Json]] = {
    _F.TYPE_BOOL: {"type": "boolean"},
    _F.TYPE_STRING: _TEXT,
    _F.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    **{
        kind: {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
        for kind in (_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32)
    },
    **{kind: {"type": "integer", "minimum": 0, "maximum": 2**32 - 1} for kind in (_F.TYPE_UINT32, _F.TYPE_FIXED32)},
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64, _F.TYPE_UINT64, _F.TYPE_FIXED64), _LONG),
}
_FLOATS: Final = frozenset({_F.TYPE_FLOAT, _F.TYPE_DOUBLE})
_INTEGER: Final[Json] = {"type": "integer"}
_WELL_KNOWN: Final[Mapping[str, Json]] = {
    "Timestamp": {"type": "string", "format": "date-time"},
    "Duration": {"type": "string", "pattern": "^-?[0-9]{1,12}([.][0-9]{1,9})?s$"},
    "FieldMask": _TEXT,
    "Struct": {"type": "object", "additionalProperties": True},
    "ListValue": {"type": "array"},
    "Value": {},
    "BoolValue": {"type": "boolean"},
    "StringValue": _TEXT,
    "BytesValue": _SCALARS[_F.TYPE_BYTES],
    "Int32Value": _SCALARS[_F.TYPE_INT32],
    "UInt32Value": _SCALARS[_F.TYPE_UINT32],
    "Int64Value": _LONG,
    "UInt64Value": _LONG,
    "FloatValue": {"type": "number"},
    "DoubleValue": {"type": "number"},
}
_WELL_KNOWN_PREFIX: Final = "google.protobuf."


class MessageSchemas:
    """The schemas of one message and of those inside it."""

    def __init__(self, comments: Mapping[str, str], direction: Direction) -> None:
        self._comments = comments
        self._direction = direction
        self._definitions: dict[str, Json] = {}

    def build(self, message: Descriptor) -> Json:
        """Build the schema of a request's or response's message, or raise `UnsupportedOperation`."""
        if message.full_name.startswith(_WELL_KNOWN_PREFIX) and message.name != "Empty":
            raise UnsupportedOperation(
                f"its {self._direction} is {message.full_name}, which is not an object of its own"
            )
        schema = self._build_object(message)
        definitions = {name: each for name, each in self._definitions.items() if each}
        return {**schema, "$defs": definitions} if definitions else schema

    def _build_object(self, message: Descriptor) -> Json:
        properties = {field.name: self._build_field(field) for field in message.fields}
        required_names = [field.name for field in message.fields if field.is_required]
        return {
            "type": "object",
            "properties": properties,
            **({"required": required_names} if required_names else {}),
            "additionalProperties": False,
        }

    def _build_field(self, field: FieldDescriptor) -> Json:
        if _is_map(field):
            assert field.message_type is not None
            value = field.message_type.fields_by_name["value"]
            schema: Json = {"type": "object", "additionalProperties": self._build_value(value)}
        elif field.is_repeated:
            schema = {"type": "array", "items": self._build_value(field)}
        else:
            schema = self._build_value(field)
        comment = self._comments.get(field.full_name, "")
        return {**schema, "description": comment[:_LONGEST_DESCRIPTION]} if comment else schema

    def _build_value(self, field: FieldDescriptor) -> Json:
        if field.enum_type is not None:
            return self._build_enum(field.enum_type)
        if field.message_type is not None:
            return self._build_message(field.message_type)
        if field.type in _FLOATS:
            # A response may say NaN or Infinity, which are text in this mapping.
            return {"type": "number"} if self._direction == "request" else {"type": ["number", "string"]}
        return dict(_SCALARS[field.type])

    def _build_enum(self, enum: EnumDescriptor) -> Json:
        if enum.full_name == f"{_WELL_KNOWN_PREFIX}NullValue":
            return {"type": "null"}
        # A newer service may answer with a value that the document does not have: as a number.
        if self._direction == "response":
            return {"type": ["string", "integer"]}
        return {"type": "string", "enum": [each.name for each in enum.values]}

    def _build_message(self, message: Descriptor) -> Json:
        if message.full_name.startswith(_WELL_KNOWN_PREFIX) and message.name in _WELL_KNOWN:
            return dict(_WELL_KNOWN[message.name])
        if message.full_name == f"{_WELL_KNOWN_PREFIX}Any":
            raise UnsupportedOperation("its messages contain google.protobuf.Any, which can hold anything")
        if message.full_name not in self._definitions:
            if len(self._definitions) >= _MAX_MESSAGES:
                raise UnsupportedOperation(f"its messages contain more than {_MAX_MESSAGES} others")
            # Reserved first: a message may contain itself.
            self._definitions[message.full_name] = {}
            self._definitions[message.full_name] = self._build_object(message)
        return {"$ref": f"#/$defs/{message.full_name}"}


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
