"""Put the documents that an OpenAPI document refers to into it, if their addresses are allowed.

Each is stored once below `x-documents`, and every reference to it becomes one inside the document. What is pinned is
then complete, and nothing is fetched later. A reference that is not allowed stays as it is: the operations that need it
are refused with the reason.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urldefrag, urljoin

from deputize.catalog.importers.openapi.document import (
    MAX_DOCUMENT_BYTES,
    InvalidDocument,
    Json,
    OpenApiDocument,
    check_document,
    parse_content,
)

MAX_REFERENCED_DOCUMENTS: Final = 100
_STORE: Final = "x-documents"
_MAX_DEPTH: Final = 200
_TOO_MANY: Final = (
    f"the documents that it refers to are more than {MAX_REFERENCED_DOCUMENTS}, or larger than "
    f"{MAX_DOCUMENT_BYTES // 1_048_576} MB together: allow fewer of them"
)


def include_references(
    document: OpenApiDocument, address: str, is_allowed: Callable[[str], bool], fetch: Callable[[str], bytes]
) -> OpenApiDocument:
    """Include the documents that are referred to, directly or by others. `address` is the document's own, absolute."""
    documents: dict[str, Json] = {}
    pending = [(document.content, address, "")]
    left_bytes = MAX_DOCUMENT_BYTES
    while pending:
        content, base, prefix = pending.pop(0)
        for node in _iterate_references(content):
            target, fragment = _resolve(base, node["$ref"])
            if target in (base, address):
                node["$ref"] = f"#{prefix if target == base else ''}{fragment}"
                continue
            if target is None or not is_allowed(target):
                continue
            if target not in documents:
                source = fetch(target)
                left_bytes -= len(source)
                if left_bytes < 0 or len(documents) == MAX_REFERENCED_DOCUMENTS:
                    raise InvalidDocument(_TOO_MANY)
                documents[target] = _parse_referenced(source, target)
                pending.append((documents[target], target, f"/{_STORE}/{len(documents) - 1}"))
            node["$ref"] = f"#/{_STORE}/{list(documents).index(target)}{fragment}"
    if not documents:
        return document
    return check_document({**document.content, _STORE: {str(n): each for n, each in enumerate(documents.values())}})


def _resolve(base: str, reference: str) -> tuple[str | None, str]:
    """Resolve a reference to an address and a fragment; None if it is not a valid address."""
    try:
        return urldefrag(urljoin(base, reference))
    except ValueError:
        return None, ""


def _parse_referenced(source: bytes, address: str) -> Json:
    try:
        content = parse_content(source)
    except InvalidDocument as error:
        raise InvalidDocument(f"{address[:200]}, which it refers to, cannot be read: {error}") from None
    if not isinstance(content, dict):
        raise InvalidDocument(f"{address[:200]}, which it refers to, is not an object: remove the reference")
    return content


def _iterate_references(content: Any) -> Iterator[Json]:
    """Yield every object with a reference; the reference may be changed meanwhile."""
    level = [content]
    for _ in range(_MAX_DEPTH):
        children: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                if isinstance(node.get("$ref"), str):
                    yield node
                children += node.values()
            elif isinstance(node, list):
                children += node
        if not children:
            return
        level = children
