"""Read a descriptor set, which `protoc --descriptor_set_out --include_imports` writes, and cut out what a method needs.

A contract holds the definitions of its own messages (`pack_definitions`), so that a worker that resumes a call encodes
what was approved, whatever the document says by then.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import (
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    MethodOptions,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from deputize.catalog.importers.openapi.document import InvalidDocument, UnsupportedOperation
from deputize.core.value_types import frozen

_MAX_FILES: Final = 2_000
_MAX_METHODS: Final = 5_000
_MAX_DEFINITIONS: Final = 49_152
_MESSAGE_TYPE, _ENUM_TYPE, _SERVICE, _METHOD, _FIELD, _NESTED = 4, 5, 6, 2, 2, 3


@frozen
class GrpcMethod:
    """A method of a service. `key` is `package.Service/Method`, as gRPC itself spells it."""

    key: str
    descriptor: MethodDescriptor
    comment: str

    @property
    def path(self) -> str:
        return f"/{self.key}"

    @property
    def reads(self) -> bool:
        """Whether the document declares that the method has no side effects."""
        level: int = self.descriptor.GetOptions().idempotency_level
        return level == MethodOptions.NO_SIDE_EFFECTS


@frozen
class GrpcDocument:
    """The methods of a descriptor set, and the comments on its definitions by their full names."""

    methods: tuple[GrpcMethod, ...]
    comments: Mapping[str, str]
    title: str


def parse_descriptor_set(content: bytes) -> GrpcDocument:
    """Parse a descriptor set, or raise `InvalidDocument` with the reason."""
    try:
        files = FileDescriptorSet.FromString(content).file
    except DecodeError:
        raise InvalidDocument("it is not a descriptor set of protoc") from None
    if not 0 < len(files) <= _MAX_FILES:
        raise InvalidDocument(f"it has {len(files)} files, and 1 to {_MAX_FILES:,} are supported")
    pool = DescriptorPool()
    comments: dict[str, str] = {}
    for each in files:
        comments.update(_collect_comments(each))
        try:
            pool.Add(each)
        except (TypeError, KeyError, ValueError) as error:
            raise InvalidDocument(f"{each.name} cannot be used; was --include_imports set? ({error})") from None
    methods: list[GrpcMethod] = []
    for file in files:
        for service in file.service:
            full_name = f"{file.package}.{service.name}" if file.package else service.name
            try:
                descriptor = pool.FindServiceByName(full_name)
            except KeyError:
                raise InvalidDocument(f"its service {full_name} refers to a file that it does not have") from None
            methods += [
                GrpcMethod(key=f"{full_name}/{each.name}", descriptor=each, comment=comments.get(each.full_name, ""))
                for each in descriptor.methods
            ]
    if not 0 < len(methods) <= _MAX_METHODS:
        raise InvalidDocument(f"it has {len(methods)} methods, and 1 to {_MAX_METHODS:,} are supported")
    return GrpcDocument(methods=tuple(methods), comments=comments, title=methods[0].key.partition("/")[0])


def pack_definitions(method: MethodDescriptor) -> str:
    """Pack the definitions of a method's messages into text, with the method itself at the end."""
    definitions: dict[str, Descriptor | EnumDescriptor] = {}
    _collect_definitions(method.input_type, definitions)
    _collect_definitions(method.output_type, definitions)
    by_file: dict[str, FileDescriptorProto] = {}
    for each in definitions.values():
        file = by_file.setdefault(each.file.name, _make_file(each.file))
        if isinstance(each, Descriptor):
            each.CopyToProto(file.message_type.add())
        else:
            each.CopyToProto(file.enum_type.add())
    descriptor_set = FileDescriptorSet()
    for name in _sort_files(definitions):
        by_file[name].dependency.extend(each.name for each in descriptor_set.file)
        descriptor_set.file.append(by_file[name])
    last = descriptor_set.file.add(name="deputize/called_method.proto", syntax="proto3")
    last.dependency.extend(by_file)
    last.service.add(name="CalledService").method.append(
        MethodDescriptorProto(
            name=method.name,
            input_type=f".{method.input_type.full_name}",
            output_type=f".{method.output_type.full_name}",
        )
    )
    text = base64.b64encode(descriptor_set.SerializeToString(deterministic=True)).decode()
    if len(text) > _MAX_DEFINITIONS:
        raise UnsupportedOperation(f"its messages have definitions of more than {_MAX_DEFINITIONS // 1024} KB")
    return text


def _make_file(file: Any) -> FileDescriptorProto:
    before, after = FileDescriptorProto(), FileDescriptorProto()
    file.CopyToProto(before)
    for field in ("name", "package", "syntax", "edition"):
        if before.HasField(field):
            setattr(after, field, getattr(before, field))
    if before.options.HasField("features"):
        after.options.features.CopyFrom(before.options.features)
    return after


def _sort_files(definitions: Mapping[str, Descriptor | EnumDescriptor]) -> list[str]:
    """Sort the files of definitions so that each comes after those that it depends on."""
    names: dict[str, None] = {}
    files = {each.file.name: each.file for each in definitions.values()}
    stack: list[tuple[Any, bool]] = [(each, False) for each in files.values()]
    visited_names: set[str] = set()
    while stack:
        file, is_complete = stack.pop()
        if is_complete:
            names[file.name] = None
        elif file.name not in visited_names:
            visited_names.add(file.name)
            stack.append((file, True))
            stack += [(each, False) for each in file.dependencies]
    return [name for name in names if name in files]


def _collect_definitions(message: Descriptor, definitions: dict[str, Descriptor | EnumDescriptor]) -> None:
    """Collect the top-level definitions that a message needs, by their full names."""
    stack: list[Descriptor] = [_find_outermost(message)]
    while stack:
        outermost = stack.pop()
        if outermost.full_name in definitions:
            continue
        definitions[outermost.full_name] = outermost
        for each in _iterate_messages(outermost):
            for field in each.fields:
                if field.message_type is not None:
                    stack.append(_find_outermost(field.message_type))
                elif field.enum_type is not None and field.enum_type.containing_type is not None:
                    stack.append(_find_outermost(field.enum_type.containing_type))
                elif field.enum_type is not None:
                    definitions[field.enum_type.full_name] = field.enum_type


def _iterate_messages(message: Descriptor) -> Iterator[Descriptor]:
    stack = [message]
    while stack:
        each = stack.pop()
        yield each
        stack += each.nested_types


def _find_outermost(message: Descriptor) -> Descriptor:
    while message.containing_type is not None:
        message = message.containing_type
    return message


def _collect_comments(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    """Collect the comments above messages, fields and methods; descriptor sets have them with --include_source_info."""
    for location in file.source_code_info.location:
        text = location.leading_comments.strip()
        name = _find_name(file, tuple(location.path)) if text else None
        if name is not None:
            yield name, text


def _find_name(file: FileDescriptorProto, path: tuple[int, ...]) -> str | None:
    """Find the full name of what a path of a descriptor leads to; None for what has no comment here."""
    try:
        if path[:1] == (_SERVICE,) and len(path) == 4 and path[2] == _METHOD:
            service = file.service[path[1]]
            names = [service.name, service.method[path[3]].name]
        elif path[:1] == (_MESSAGE_TYPE,):
            message: Any = file.message_type[path[1]]
            names, rest = [message.name], path[2:]
            while rest[:1] == (_NESTED,):
                message = message.nested_type[rest[1]]
                names, rest = [*names, message.name], rest[2:]
            if len(rest) != 2 or rest[0] != _FIELD:
                return None
            names.append(message.field[rest[1]].name)
        else:
            return None
    except IndexError:
        return None
    return ".".join([file.package, *names] if file.package else names)
