"""Parse an OpenAPI document and follow the references inside it.

A document comes from outside: its size, its depth and the references that are followed are limited. YAML aliases are
refused, because a few hundred bytes of them expand to gigabytes. References to other documents are refused here;
`references.py` includes those that are allowed.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
import yaml

from deputize.catalog.importers.tool_names import normalize_name
from deputize.catalog.schemas import resolve_pointer
from deputize.core.value_types import frozen

MAX_DOCUMENT_BYTES: Final = 16_777_216
# A YAML document of this size takes about ten seconds to parse.
MAX_YAML_BYTES: Final = 4_194_304
MAX_DOCUMENT_DEPTH: Final = 100
MAX_OPERATIONS: Final = 5_000
_MAX_REFERENCES: Final = 20
_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_NOT_WORD: Final = re.compile(r"\W")
Json = dict[str, Any]


class InvalidDocument(ValueError):
    """The document cannot be imported; the message says why and what to do."""


class UnsupportedOperation(ValueError):
    """One operation cannot be imported; the message says why."""


class _Loader(yaml.CSafeLoader):
    """A loader for the part of YAML that is JSON: dates, `yes` and `<<` stay texts, and nothing is merged."""

    yaml_implicit_resolvers = {
        first: [each for each in resolvers if each[0] != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        if first not in tuple("yYnNoO<")
    } | {
        first: [each for each in yaml.SafeLoader.yaml_implicit_resolvers[first] if each[0] == "tag:yaml.org,2002:null"]
        for first in "nN"
    }

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge nothing: merges of merges take exponential time."""


@frozen
class OpenApiDocument:
    """A parsed document of OpenAPI 3.0 or 3.1."""

    content: Json
    is_version_30: bool

    def resolve(self, node: Any) -> Any:
        """Follow the references of a node that is not a schema, until it is no reference."""
        for _ in range(_MAX_REFERENCES):
            reference = node.get("$ref") if isinstance(node, dict) else None
            if not isinstance(reference, str):
                return node
            node = self.find(reference)
        raise UnsupportedOperation("its references form a loop")

    def find(self, reference: str) -> Any:
        """Find the target of a reference inside the document."""
        if not reference.startswith("#/"):
            raise UnsupportedOperation(
                f"it refers to another document ({reference[:100]}): import with --allow-ref, or bundle the documents"
            )
        target = resolve_pointer(self.content, reference)
        if target is None:
            raise UnsupportedOperation(f"its reference {reference[:100]} points to nothing")
        return target


@frozen
class DocumentOperation:
    """One operation as the document declares it. `key` is its id, or its method and path."""

    key: str
    method: str
    path: str
    declaration: Json
    path_item: Json


def parse_document(content: bytes) -> OpenApiDocument:
    """Parse an OpenAPI document, or raise `InvalidDocument`."""
    return check_document(parse_content(content))


def parse_content(content: bytes) -> Any:
    """Parse JSON or YAML, or raise `InvalidDocument`."""
    if len(content) > MAX_DOCUMENT_BYTES:
        raise InvalidDocument(f"the document is larger than {MAX_DOCUMENT_BYTES // 1_048_576} MB: remove parts of it")
    is_json = content.lstrip()[:1] == b"{"
    try:
        return orjson.loads(content) if is_json else _parse_yaml(content)
    except orjson.JSONDecodeError as error:
        raise InvalidDocument(f"the document is not valid JSON: {error}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, TypeError, RecursionError) as error:
        if isinstance(error, InvalidDocument):
            raise
        raise InvalidDocument(f"the document is not valid YAML: {str(error)[:200]}") from None


def _parse_yaml(content: bytes) -> Any:
    if len(content) > MAX_YAML_BYTES:
        raise InvalidDocument(
            f"the YAML document is larger than {MAX_YAML_BYTES // 1_048_576} MB: convert it to JSON first"
        )
    _check_yaml_events(content)
    document = yaml.load(content, Loader=_Loader)
    # Only what JSON can represent: YAML has dates, sets, binary values and keys of any type.
    return orjson.loads(orjson.dumps(_copy_as_json(document, 0, set())))


def _check_yaml_events(content: bytes) -> None:
    """Refuse aliases and deep nesting before anything is built: depth ends a process that builds it."""
    depth = 0
    for event in yaml.parse(content, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise InvalidDocument("the document has YAML aliases (*name), which are not followed: write the part out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DOCUMENT_DEPTH + 1:
            raise InvalidDocument(f"the document is nested deeper than {MAX_DOCUMENT_DEPTH} levels: flatten it")


def _copy_as_json(value: Any, depth: int, seen_ids: set[int]) -> Any:
    """Copy a YAML value with texts as keys. An alias is the same object again, and could expand without end."""
    if not isinstance(value, dict | list):
        return value
    if id(value) in seen_ids:
        raise InvalidDocument("the document has YAML aliases (*name), which are not followed: write the part out")
    if depth > MAX_DOCUMENT_DEPTH:
        raise InvalidDocument(f"the document is nested deeper than {MAX_DOCUMENT_DEPTH} levels: flatten it")
    seen_ids.add(id(value))
    if isinstance(value, list):
        return [_copy_as_json(each, depth + 1, seen_ids) for each in value]
    return {str(key): _copy_as_json(each, depth + 1, seen_ids) for key, each in value.items()}


def check_document(document: Any) -> OpenApiDocument:
    """Check version and depth of a parsed document, or raise `InvalidDocument`."""
    version = str(document.get("openapi", "")) if isinstance(document, dict) else ""
    if isinstance(document, dict) and "swagger" in document:
        raise InvalidDocument("the document is Swagger 2.0: convert it to OpenAPI 3 first")
    if not version.startswith(("3.0.", "3.1.")):
        raise InvalidDocument("the document is not OpenAPI 3.0 or 3.1: its field openapi must say so")
    if not isinstance(document.get("paths", {}), dict):
        raise InvalidDocument("the document's field paths is not an object: correct it")
    if _is_deeper(document, MAX_DOCUMENT_DEPTH):
        raise InvalidDocument(f"the document is nested deeper than {MAX_DOCUMENT_DEPTH} levels: flatten it")
    return OpenApiDocument(content=document, is_version_30=version.startswith("3.0."))


def _is_deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth + 1):
        level = [
            child
            for each in level
            if isinstance(each, dict | list)
            for child in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def iterate_operations(document: OpenApiDocument) -> Iterator[DocumentOperation]:
    """Yield the operations in the document's order; an operation id that occurs twice is not used as a key."""
    operations = list(_iterate_declarations(document))
    if len(operations) > MAX_OPERATIONS:
        raise InvalidDocument(f"the document has more than {MAX_OPERATIONS:,} operations: split it")
    ids = [declaration.get("operationId") for _, _, declaration, _ in operations]
    counts: dict[str, int] = {}
    for each in ids:
        if isinstance(each, str):
            counts[each] = counts.get(each, 0) + 1
    for (method, path, declaration, path_item), identity in zip(operations, ids, strict=True):
        is_unique = isinstance(identity, str) and identity.strip() != "" and counts[identity] == 1
        key = str(identity) if is_unique else f"{method.upper()} {path}"
        yield DocumentOperation(key=key, method=method, path=path, declaration=declaration, path_item=path_item)


def list_generated_names(operations: Sequence[DocumentOperation]) -> dict[str, str]:
    """List the functions' names in operation ids that FastAPI generated from name, path and method, by key.

    One that several operations would have is left out, also if it is another operation's id.
    """
    names: dict[str, str] = {}
    for each in operations:
        name = each.key.removesuffix(f"{_NOT_WORD.sub('_', each.path)}_{each.method}")
        if name.strip("_") and name != each.key:
            names[each.key] = name
    counts = Counter(normalize_name(each) for each in [*names.values(), *(each.key for each in operations)])
    return {key: name for key, name in names.items() if counts[normalize_name(name)] == 1}


def _iterate_declarations(document: OpenApiDocument) -> Iterator[tuple[str, str, Json, Json]]:
    for path, path_item in document.content.get("paths", {}).items():
        try:
            item = document.resolve(path_item)
        except UnsupportedOperation as error:
            raise InvalidDocument(f"the path {path[:100]} cannot be read: {error}") from None
        for method in _METHODS:
            declaration = item.get(method) if isinstance(item, dict) else None
            if isinstance(declaration, dict):
                yield method, path, declaration, item


def find_server_url(document: OpenApiDocument, base_url: str | None = None) -> str | None:
    """Find the URL of the document's first server, with its variables' defaults; None if it names none."""
    servers = document.content.get("servers")
    first = servers[0] if isinstance(servers, list) and servers and isinstance(servers[0], dict) else {}
    url, variables = first.get("url"), first.get("variables")
    if not isinstance(url, str):
        return base_url
    for name, variable in variables.items() if isinstance(variables, Mapping) else ():
        default = variable.get("default") if isinstance(variable, dict) else None
        url = url.replace("{" + name + "}", str(default)) if default is not None else url
    if url.startswith("/"):
        return None if base_url is None else base_url + url.rstrip("/")
    return url.rstrip("/")
