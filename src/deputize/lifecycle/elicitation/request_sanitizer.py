"""Check a server's input requests against the protocol before they are passed on.

An input request is foreign text on its way to a person or a model: it is limited in size, contains nothing hidden,
names the server, and is rebuilt from the fields that the protocol knows. A form that asks for a secret is refused, as
the protocol requires, if its field names show that.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from deputize.catalog.drift.hidden_characters import find_hidden_text
from deputize.catalog.schemas import BadSchema, compile_schema
from deputize.core.canonical import NotCanonical, canonicalize
from deputize.core.errors import InputRequestRejected
from deputize.core.mcp.elicitation import ClientCapability, InputRequest, InputRequests, find_required_capability
from deputize.core.sensitive.names import is_sensitive_name

MAX_QUESTIONS: Final = 16
MAX_BYTES: Final = 65_536
MAX_STATE_LENGTH: Final = 32_768
_MAX_NAME_LENGTH: Final = 128
_MAX_MESSAGE_LENGTH: Final = 4_000
_MAX_URL_LENGTH: Final = 2_048
_MAX_FIELDS: Final = 32
_MAX_MESSAGES: Final = 64
_MAX_TOKENS: Final = 1_000_000
_DESCRIPTIVE_KEYS: Final = ("title", "description", "default")
# What a form's field may contain, by its type. The rest is left out: the server validates the answer itself.
_FIELD_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "string": ("minLength", "maxLength", "format", "enum", "enumNames", "oneOf"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "boolean": (),
    "array": ("items", "minItems", "maxItems"),
}
_FORMATS: Final = frozenset({"email", "uri", "date", "date-time"})
_BLOCK_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
}
_SAMPLING_TYPES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "systemPrompt": str,
    "temperature": (int, float),
    "stopSequences": list,
    "modelPreferences": dict,
}


def sanitize_requests(input_requests: InputRequests, own_host: str | None) -> InputRequests:
    """Return the input requests as they may be passed on, or raise the refusal.

    `own_host` is where people sign in to this gateway: no server may send them there.
    """
    if len(input_requests.requests) > MAX_QUESTIONS:
        _refuse_request(input_requests, f"more than {MAX_QUESTIONS} questions at once")
    if len(input_requests.request_state or "") > MAX_STATE_LENGTH:
        _refuse_request(input_requests, f"a state of more than {MAX_STATE_LENGTH} characters")
    clean_questions: dict[str, InputRequest] = {}
    for name, question in input_requests.requests.items():
        if not 0 < len(name) <= _MAX_NAME_LENGTH:
            _refuse_request(input_requests, f"a question whose name does not have 1 to {_MAX_NAME_LENGTH} characters")
        clean_questions[name] = _sanitize_question(input_requests, question, own_host)
    try:
        if len(canonicalize(clean_questions)) > MAX_BYTES:
            _refuse_request(input_requests, f"more than {MAX_BYTES} bytes of questions")
    except NotCanonical as error:
        _refuse_request(input_requests, f"what JSON cannot carry exactly: {error}")
    for text in _iterate_texts(clean_questions):
        for _, _, kind in find_hidden_text(text):
            _refuse_request(input_requests, f"text that holds {kind}")
    return replace(input_requests, requests=clean_questions)


def _sanitize_question(input_requests: InputRequests, question: InputRequest, own_host: str | None) -> InputRequest:
    params = question.get("params")
    fields: dict[str, Any] = params if isinstance(params, dict) else {}
    match find_required_capability(question):
        case ClientCapability.FORM:
            clean_params = {
                "mode": "form",
                "message": _sanitize_text(input_requests, fields),
                "requestedSchema": _sanitize_form(input_requests, fields),
            }
        case ClientCapability.URL:
            clean_params = {
                "mode": "url",
                "message": _sanitize_text(input_requests, fields),
                "url": _check_url(input_requests, fields, own_host),
            }
        case ClientCapability.SAMPLING:
            clean_params = _sanitize_sampling(input_requests, fields)
        case ClientCapability.ROOTS:
            clean_params = {}
        case _:
            _refuse_request(input_requests, "what the protocol does not know")
    return {"method": question["method"], "params": clean_params}


def _sanitize_text(input_requests: InputRequests, params: dict[str, Any]) -> str:
    message = params.get("message")
    if not isinstance(message, str) or not message.strip() or len(message) > _MAX_MESSAGE_LENGTH:
        _refuse_request(input_requests, f"a question that is no text of 1 to {_MAX_MESSAGE_LENGTH} characters")
    # One paragraph, so that no part of it can be separated from the server's name.
    return f"The server {input_requests.server} asks: {' '.join(message.split())}"


def _check_url(input_requests: InputRequests, params: dict[str, Any], own_host: str | None) -> str:
    url = params.get("url")
    if (
        not isinstance(url, str)
        or len(url) > _MAX_URL_LENGTH
        or not (url.isascii() and url.isprintable())
        or " " in url
    ):
        _refuse_request(input_requests, f"to open an address that is none, or longer than {_MAX_URL_LENGTH} characters")
    try:
        parts = urlsplit(url)
        host, has_userinfo = parts.hostname, parts.username is not None or parts.password is not None
    except ValueError:
        _refuse_request(input_requests, "to open an address that is none")
    if parts.scheme != "https" or not host or has_userinfo or "\\" in url:
        _refuse_request(input_requests, "to open an address that is not https, or that names a user")
    if own_host is not None and host.rstrip(".") == own_host:
        _refuse_request(input_requests, "to open an address of this gateway itself")
    return url


def _sanitize_form(input_requests: InputRequests, params: dict[str, Any]) -> dict[str, Any]:
    schema = params.get("requestedSchema")
    fields = schema.get("properties") if isinstance(schema, dict) and schema.get("type") == "object" else None
    if not isinstance(fields, dict) or not 0 < len(fields) <= _MAX_FIELDS:
        _refuse_request(input_requests, f"a form that is no object of 1 to {_MAX_FIELDS} fields")
    required_names = schema.get("required", []) if isinstance(schema, dict) else []
    if not isinstance(required_names, list) or not all(
        isinstance(each, str) and each in fields for each in required_names
    ):
        _refuse_request(input_requests, "a form that requires fields it does not have")
    clean_form = {
        "type": "object",
        "properties": {name: _sanitize_field(input_requests, name, field) for name, field in fields.items()},
        **({"required": required_names} if required_names else {}),
    }
    try:
        compile_schema(clean_form)
    except BadSchema as error:
        _refuse_request(input_requests, f"a form whose schema is none ({error})")
    return clean_form


def _sanitize_field(input_requests: InputRequests, name: str, field: Any) -> dict[str, Any]:
    kind = field.get("type") if isinstance(field, dict) else None
    if not isinstance(kind, str) or kind not in _FIELD_KEYS:
        _refuse_request(input_requests, "a form with a field that is neither text, number, truth value nor a choice")
    title = field.get("title")
    if is_sensitive_name(name) or (isinstance(title, str) and is_sensitive_name(title.strip().replace(" ", "_"))):
        _refuse_request(
            input_requests, "for a secret in a form; it may be asked for only at an address of the server's own"
        )
    if field.get("format") == "password":
        _refuse_request(
            input_requests, "for a secret in a form; it may be asked for only at an address of the server's own"
        )
    attributes = {key: field[key] for key in (*_DESCRIPTIVE_KEYS, *_FIELD_KEYS[kind]) if key in field}
    if "format" in attributes and attributes["format"] not in _FORMATS:
        del attributes["format"]
    if kind == "array":
        attributes["items"] = _sanitize_choices(input_requests, attributes.get("items"))
    if "oneOf" in attributes:
        attributes["oneOf"] = _sanitize_titled_choices(input_requests, attributes["oneOf"])
    return {"type": kind, **attributes}


def _sanitize_choices(input_requests: InputRequests, items: Any) -> dict[str, Any]:
    """Rebuild a choice of several texts, the only kind of array a form may have."""
    if isinstance(items, dict):
        if "anyOf" in items:
            return {"anyOf": _sanitize_titled_choices(input_requests, items["anyOf"])}
        enum = items.get("enum")
        if items.get("type") == "string" and isinstance(enum, list) and all(isinstance(each, str) for each in enum):
            return {"type": "string", "enum": enum}
    _refuse_request(input_requests, "a form with a list that is no choice among texts")


def _sanitize_titled_choices(input_requests: InputRequests, choices: Any) -> list[dict[str, str]]:
    is_valid = isinstance(choices, list) and all(
        isinstance(each, dict) and isinstance(each.get("const"), str) and isinstance(each.get("title", ""), str)
        for each in choices
    )
    if not is_valid:
        _refuse_request(input_requests, "a form with choices that are no texts")
    return [{key: each[key] for key in ("const", "title") if key in each} for each in choices]


def _sanitize_sampling(input_requests: InputRequests, params: dict[str, Any]) -> dict[str, Any]:
    """Rebuild a sampling request. Tools and the context of other servers are not passed to this one."""
    if params.get("tools") or params.get("toolChoice"):
        _refuse_request(input_requests, "a model to use tools of the server's own")
    if params.get("includeContext", "none") not in ("none", None):
        _refuse_request(input_requests, "for what other servers told")
    messages, tokens = params.get("messages"), params.get("maxTokens")
    if not isinstance(messages, list) or not 0 < len(messages) <= _MAX_MESSAGES:
        _refuse_request(input_requests, f"a model without 1 to {_MAX_MESSAGES} messages")
    if type(tokens) is not int or not 0 < tokens <= _MAX_TOKENS:
        _refuse_request(input_requests, f"a model for no number of tokens from 1 to {_MAX_TOKENS}")
    clean_params: dict[str, Any] = {
        "messages": [_sanitize_message(input_requests, each) for each in messages],
        "maxTokens": tokens,
    }
    for name, kind in _SAMPLING_TYPES.items():
        if params.get(name) is not None:
            if not isinstance(params[name], kind):
                _refuse_request(input_requests, f"a model with a {name} of another kind")
            clean_params[name] = params[name]
    return clean_params


def _sanitize_message(input_requests: InputRequests, message: Any) -> dict[str, Any]:
    role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
    if role not in ("user", "assistant"):
        _refuse_request(input_requests, "a model with a message of an unknown role")
    blocks = [_sanitize_block(input_requests, each) for each in (content if isinstance(content, list) else [content])]
    return {"role": role, "content": blocks if isinstance(content, list) else blocks[0]}


def _sanitize_block(input_requests: InputRequests, block: Any) -> dict[str, Any]:
    keys = _BLOCK_KEYS.get(str(block.get("type"))) if isinstance(block, dict) else None
    if keys is None or not all(isinstance(block.get(each), str) for each in keys):
        _refuse_request(input_requests, "a model with what is neither text, picture nor sound")
    return {"type": block["type"], **{each: block[each] for each in keys}}


def _iterate_texts(value: Any) -> Iterator[str]:
    """Iterate over all texts that are read, including names, but not over images and sounds."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _iterate_texts(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            if not (name == "data" and value.get("type") in ("image", "audio")):
                yield from _iterate_texts(each)


def _refuse_request(input_requests: InputRequests, what: str) -> NoReturn:
    raise InputRequestRejected(
        f"the server {input_requests.server} asks {what}; this is not passed on",
        details={"server": input_requests.server, "why": what},
    )
