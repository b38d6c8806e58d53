"""What a server asks back, held to the protocol's shapes before anybody is asked.

A question is somebody else's text on its way to a person or a model: of bounded size, without anything hidden in it, in
the server's name, and rebuilt here from what the protocol knows. A form that asks for a secret is refused, as the
protocol wants it, where its names give that away. Above: `verify.py`. Below: `core/questions.py`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from deputize.catalog.drift.hidden import hidden
from deputize.catalog.schemas import BadSchema, compile_schema
from deputize.core.canonical import NotCanonical, canonical
from deputize.core.errors import QuestionRefused
from deputize.core.questions import Ability, Asks, Question, ability_of
from deputize.core.sensitive import is_sensitive_name

MOST_QUESTIONS: Final = 16
LARGEST: Final = 65_536
LARGEST_STATE: Final = 32_768
_LONGEST_NAME: Final = 128
_LONGEST_MESSAGE: Final = 4_000
_LONGEST_URL: Final = 2_048
_MOST_FIELDS: Final = 32
_MOST_MESSAGES: Final = 64
_MOST_TOKENS: Final = 1_000_000
_DESCRIBED: Final = ("title", "description", "default")
# What a field of a form may say, by its type. Anything else is left out: the server holds the answer to it itself.
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "string": ("minLength", "maxLength", "format", "enum", "enumNames", "oneOf"),
    "number": ("minimum", "maximum"),
    "integer": ("minimum", "maximum"),
    "boolean": (),
    "array": ("items", "minItems", "maxItems"),
}
_FORMATS: Final = frozenset({"email", "uri", "date", "date-time"})
_BLOCKS: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
}
_SAMPLING: Final[Mapping[str, type | tuple[type, ...]]] = {
    "systemPrompt": str,
    "temperature": (int, float),
    "stopSequences": list,
    "modelPreferences": dict,
}


def held_to_shapes(asks: Asks, own_host: str | None) -> Asks:
    """The questions as they may be asked, or the refusal. `own_host` is where people sign in to us: no server sends
    anybody there.
    """
    if len(asks.questions) > MOST_QUESTIONS:
        _refuse(asks, f"more than {MOST_QUESTIONS} questions at once")
    if len(asks.state or "") > LARGEST_STATE:
        _refuse(asks, f"a state of more than {LARGEST_STATE} characters")
    shaped: dict[str, Question] = {}
    for name, question in asks.questions.items():
        if not 0 < len(name) <= _LONGEST_NAME:
            _refuse(asks, f"a question whose name does not have 1 to {_LONGEST_NAME} characters")
        shaped[name] = _shaped(asks, question, own_host)
    try:
        if len(canonical(shaped)) > LARGEST:
            _refuse(asks, f"more than {LARGEST} bytes of questions")
    except NotCanonical as error:
        _refuse(asks, f"what JSON cannot carry exactly: {error}")
    for text in _texts(shaped):
        for _, _, kind in hidden(text):
            _refuse(asks, f"text that holds {kind}")
    return replace(asks, questions=shaped)


def _shaped(asks: Asks, question: Question, own_host: str | None) -> Question:
    params = question.get("params")
    said: dict[str, Any] = params if isinstance(params, dict) else {}
    match ability_of(question):
        case Ability.FORM:
            shaped = {"mode": "form", "message": _message(asks, said), "requestedSchema": _form(asks, said)}
        case Ability.ADDRESS:
            shaped = {"mode": "url", "message": _message(asks, said), "url": _address(asks, said, own_host)}
        case Ability.SAMPLING:
            shaped = _sampling(asks, said)
        case Ability.ROOTS:
            shaped = {}
        case _:
            _refuse(asks, "what the protocol does not know")
    return {"method": question["method"], "params": shaped}


def _message(asks: Asks, said: dict[str, Any]) -> str:
    message = said.get("message")
    if not isinstance(message, str) or not message.strip() or len(message) > _LONGEST_MESSAGE:
        _refuse(asks, f"a question that is no text of 1 to {_LONGEST_MESSAGE} characters")
    # One paragraph: nothing of it can be set apart from who asks.
    return f"The server {asks.server} asks: {' '.join(message.split())}"


def _address(asks: Asks, said: dict[str, Any], own_host: str | None) -> str:
    url = said.get("url")
    if not isinstance(url, str) or len(url) > _LONGEST_URL or not (url.isascii() and url.isprintable()) or " " in url:
        _refuse(asks, f"to open an address that is none, or longer than {_LONGEST_URL} characters")
    try:
        parts = urlsplit(url)
        host, named = parts.hostname, parts.username is not None or parts.password is not None
    except ValueError:
        _refuse(asks, "to open an address that is none")
    if parts.scheme != "https" or not host or named or "\\" in url:
        _refuse(asks, "to open an address that is not https, or that names a user")
    if own_host is not None and host.rstrip(".") == own_host:
        _refuse(asks, "to open an address of this gateway itself")
    return url


def _form(asks: Asks, said: dict[str, Any]) -> dict[str, Any]:
    schema = said.get("requestedSchema")
    fields = schema.get("properties") if isinstance(schema, dict) and schema.get("type") == "object" else None
    if not isinstance(fields, dict) or not 0 < len(fields) <= _MOST_FIELDS:
        _refuse(asks, f"a form that is no object of 1 to {_MOST_FIELDS} fields")
    required = schema.get("required", []) if isinstance(schema, dict) else []
    if not isinstance(required, list) or not all(isinstance(each, str) and each in fields for each in required):
        _refuse(asks, "a form that requires fields it does not have")
    shaped = {
        "type": "object",
        "properties": {name: _field(asks, name, field) for name, field in fields.items()},
        **({"required": required} if required else {}),
    }
    try:
        compile_schema(shaped)
    except BadSchema as error:
        _refuse(asks, f"a form whose schema is none ({error})")
    return shaped


def _field(asks: Asks, name: str, field: Any) -> dict[str, Any]:
    kind = field.get("type") if isinstance(field, dict) else None
    if not isinstance(kind, str) or kind not in _FIELDS:
        _refuse(asks, "a form with a field that is neither text, number, truth value nor a choice")
    title = field.get("title")
    if is_sensitive_name(name) or (isinstance(title, str) and is_sensitive_name(title.strip().replace(" ", "_"))):
        _refuse(asks, "for a secret in a form; it may be asked for only at an address of the server's own")
    if field.get("format") == "password":
        _refuse(asks, "for a secret in a form; it may be asked for only at an address of the server's own")
    kept = {key: field[key] for key in (*_DESCRIBED, *_FIELDS[kind]) if key in field}
    if "format" in kept and kept["format"] not in _FORMATS:
        del kept["format"]
    if kind == "array":
        kept["items"] = _choices(asks, kept.get("items"))
    if "oneOf" in kept:
        kept["oneOf"] = _named_choices(asks, kept["oneOf"])
    return {"type": kind, **kept}


def _choices(asks: Asks, items: Any) -> dict[str, Any]:
    """Several of a list of texts: the one kind of array a form may have."""
    if isinstance(items, dict):
        if "anyOf" in items:
            return {"anyOf": _named_choices(asks, items["anyOf"])}
        enum = items.get("enum")
        if items.get("type") == "string" and isinstance(enum, list) and all(isinstance(each, str) for each in enum):
            return {"type": "string", "enum": enum}
    _refuse(asks, "a form with a list that is no choice among texts")


def _named_choices(asks: Asks, choices: Any) -> list[dict[str, str]]:
    fits = isinstance(choices, list) and all(
        isinstance(each, dict) and isinstance(each.get("const"), str) and isinstance(each.get("title", ""), str)
        for each in choices
    )
    if not fits:
        _refuse(asks, "a form with choices that are no texts")
    return [{key: each[key] for key in ("const", "title") if key in each} for each in choices]


def _sampling(asks: Asks, said: dict[str, Any]) -> dict[str, Any]:
    """Words for a model. Tools and the context of other servers are nobody's to hand to this one."""
    if said.get("tools") or said.get("toolChoice"):
        _refuse(asks, "a model to use tools of the server's own")
    if said.get("includeContext", "none") not in ("none", None):
        _refuse(asks, "for what other servers told")
    messages, tokens = said.get("messages"), said.get("maxTokens")
    if not isinstance(messages, list) or not 0 < len(messages) <= _MOST_MESSAGES:
        _refuse(asks, f"a model without 1 to {_MOST_MESSAGES} messages")
    if type(tokens) is not int or not 0 < tokens <= _MOST_TOKENS:
        _refuse(asks, f"a model for no number of tokens from 1 to {_MOST_TOKENS}")
    kept: dict[str, Any] = {"messages": [_spoken(asks, each) for each in messages], "maxTokens": tokens}
    for name, kind in _SAMPLING.items():
        if said.get(name) is not None:
            if not isinstance(said[name], kind):
                _refuse(asks, f"a model with a {name} of another kind")
            kept[name] = said[name]
    return kept


def _spoken(asks: Asks, message: Any) -> dict[str, Any]:
    role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
    if role not in ("user", "assistant"):
        _refuse(asks, "a model in nobody's name")
    blocks = [_block(asks, each) for each in (content if isinstance(content, list) else [content])]
    return {"role": role, "content": blocks if isinstance(content, list) else blocks[0]}


def _block(asks: Asks, block: Any) -> dict[str, Any]:
    wanted = _BLOCKS.get(str(block.get("type"))) if isinstance(block, dict) else None
    if wanted is None or not all(isinstance(block.get(each), str) for each in wanted):
        _refuse(asks, "a model with what is neither text, picture nor sound")
    return {"type": block["type"], **{each: block[each] for each in wanted}}


def _texts(value: Any) -> Iterator[str]:
    """Everything that is read, names included; what is a picture or a sound is not."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            if not (name == "data" and value.get("type") in ("image", "audio")):
                yield from _texts(each)


def _refuse(asks: Asks, what: str) -> NoReturn:
    raise QuestionRefused(
        f"the server {asks.server} asks {what}; this is not passed on", details={"server": asks.server, "why": what}
    )
