"""Define what a tool can return beside its payload: texts, pictures, sound, files, links, diffs and logs."""

import base64
from collections.abc import Sequence
from typing import Any, Final, Literal

from deputize.core.value_types import frozen

ContentKind = Literal["text", "image", "audio", "file", "link", "diff", "log"]
# Of one result. What is larger belongs behind a link.
MAX_BYTES: Final = 8_388_608
MAX_ITEMS: Final = 100
_MAX_NAME_LENGTH: Final = 255
_MAX_URI_LENGTH: Final = 2_048
# Links that would run code or carry data in place of leading somewhere.
_REFUSED_SCHEMES: Final = frozenset({"javascript", "vbscript", "data"})


@frozen
class Content:
    """One piece of content. Make it with the method of its kind, as in `Content.image(data, "image/png")`."""

    kind: ContentKind
    text: str | None = None
    data: bytes | None = None
    uri: str | None = None
    name: str | None = None
    media_type: str | None = None

    @classmethod
    def plain(cls, text: str) -> "Content":
        """Make a text."""
        return cls(kind="text", text=text, media_type="text/plain")

    @classmethod
    def image(cls, data: bytes, media_type: str = "image/png") -> "Content":
        """Make a picture of its bytes."""
        return cls(kind="image", data=data, media_type=media_type)

    @classmethod
    def audio(cls, data: bytes, media_type: str = "audio/wav") -> "Content":
        """Make sound of its bytes."""
        return cls(kind="audio", data=data, media_type=media_type)

    @classmethod
    def file(cls, name: str, data: bytes, media_type: str = "application/octet-stream") -> "Content":
        """Make a file of its name and bytes."""
        return cls(kind="file", name=name, data=data, media_type=media_type)

    @classmethod
    def link(cls, uri: str, name: str, media_type: str | None = None) -> "Content":
        """Make a link. The gateway does not follow it."""
        return cls(kind="link", uri=uri, name=name, media_type=media_type)

    @classmethod
    def diff(cls, text: str, name: str | None = None) -> "Content":
        """Make a unified diff."""
        return cls(kind="diff", text=text, name=name, media_type="text/x-diff")

    @classmethod
    def log(cls, text: str, name: str | None = None) -> "Content":
        """Make the output of a program."""
        return cls(kind="log", text=text, name=name, media_type="text/plain")


# The field that holds the content of each kind.
_BODY_FIELDS: Final[dict[str, tuple[str, type]]] = {
    "text": ("text", str),
    "image": ("data", bytes),
    "audio": ("data", bytes),
    "file": ("data", bytes),
    "link": ("uri", str),
    "diff": ("text", str),
    "log": ("text", str),
}


def render_content(items: Sequence[Content]) -> tuple[dict[str, Any], ...]:
    """Render content as JSON, with bytes in base64. Raises `ValueError` for what no kind allows."""
    if len(items) > MAX_ITEMS:
        raise ValueError(f"content has {len(items)} pieces; {MAX_ITEMS} are allowed")
    rendered_items = tuple(_render_item(each) for each in items)
    size = sum(len(each.data or b"") + len((each.text or "").encode()) for each in items)
    if size > MAX_BYTES:
        raise ValueError(f"content has {size} bytes; {MAX_BYTES} are allowed, so return a link to what is larger")
    return rendered_items


def _render_item(item: Any) -> dict[str, Any]:
    if not isinstance(item, Content) or item.kind not in _BODY_FIELDS:
        raise ValueError("content must be made with the methods of Content, such as Content.image")
    field, kind = _BODY_FIELDS[item.kind]
    body = getattr(item, field)
    if not isinstance(body, kind):
        raise ValueError(f"content of the kind {item.kind} needs {field}")
    texts: tuple[Any, ...] = (item.name, item.media_type)
    for text in texts:
        if text is not None and (not isinstance(text, str) or len(text) > _MAX_NAME_LENGTH or not text.isprintable()):
            raise ValueError(f"name and media_type must be printable texts of at most {_MAX_NAME_LENGTH} characters")
    if item.uri is not None and not is_safe_uri(item.uri):
        raise ValueError("the uri of a link must be absolute, printable, and lead to a resource, not run or carry one")
    return {
        "kind": item.kind,
        field: base64.b64encode(body).decode() if isinstance(body, bytes) else body,
        **({"name": item.name} if item.name is not None else {}),
        **({"media_type": item.media_type} if item.media_type is not None else {}),
    }


def is_safe_uri(uri: str) -> bool:
    """Tell whether a link leads somewhere and neither runs code nor carries data."""
    scheme, separator, rest = uri.partition(":")
    return bool(
        separator
        and rest
        and len(uri) <= _MAX_URI_LENGTH
        and uri.isprintable()
        and " " not in uri
        and scheme.isascii()
        and scheme.replace("+", "").replace("-", "").replace(".", "").isalnum()
        and scheme.lower() not in _REFUSED_SCHEMES
    )
