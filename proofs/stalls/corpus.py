"""Build what is cheap to write and costly to read, within the sizes that a gateway admits."""

import base64
from collections.abc import Mapping
from typing import Any

import orjson

_MEGABYTE = 1_000_000
_ANSWER_BYTES = 4_000_000
_WORDS = "Look something up in the phone book."


def build_arguments() -> Mapping[str, bytes]:
    """Build JSON values for the arguments of calls."""
    return {
        "many objects": b"[" + b",".join([b"{}"] * (_MEGABYTE // 3)) + b"]",
        "many errors": b"[" + b",".join([b"0"] * 19_000) + b"]",
        "objects in the limit": b"[" + b",".join([b"{}"] * 19_000) + b"]",
        "floats": b"[" + b",".join([b"1.5"] * 19_000) + b"]",
        "long floats": b"[" + b",".join([b"0.12345678901234567890123456789e-5"] * 19_000) + b"]",
        "wide": b"{" + b",".join(b'"%d":0' % each for each in range(19_000)) + b"}",
        "sensitive names": b"{" + b",".join(b'"password%d":0' % each for each in range(19_000)) + b"}",
        "deep": b"[" * 60 + b"]" * 60,
        "deep and wide": b"[" + b",".join([b"[" * 50 + b"]" * 50] * 380) + b"]",
        "too deep": b"[" * 400_000 + b"]" * 400_000,
        "a long number": b"1" * _MEGABYTE,
        "an infinite number": b"[" + b",".join([b"1e400"] * 100_000) + b"]",
        "combining marks": orjson.dumps("e" + "\u0301" * 450_000),
        "directions": orjson.dumps("\u202e\u200b" * 150_000),
        "escapes": b'"' + b"\\u0041" * 160_000 + b'"',
        "many short texts": b"[" + b",".join([b'"\\u202e\\u0301"'] * 19_000) + b"]",
        "a long name": b'{"' + b"a_" * 450_000 + b'":1}',
        "one name many times": b"{" + b",".join([b'"a":0'] * 19_000) + b"}",
    }


def build_small_arguments() -> Mapping[str, bytes]:
    """Build the arguments that are just small enough to be read where they arrive."""
    return {
        "objects just inline": b"[" + b",".join([b"{}"] * 1_900) + b"]",
        "floats just inline": b"[" + b",".join([b"0.1234567890123456"] * 1_900) + b"]",
        "names just inline": b"{" + b",".join(b'"password%d":"\\u202e"' % each for each in range(1_900)) + b"}",
        "marks just inline": orjson.dumps("e" + "\u0301" * 65_000),
    }


def build_expressions() -> Mapping[str, bytes]:
    """Build documents of a recursive type whose errors double with every level."""
    return {f"wrong at level {depth}": b'{"left":' * depth + b'"x"' + b"}" * depth for depth in (2, 6, 12, 18, 60)}


def build_results() -> Mapping[str, bytes]:
    """Build results of a server's tool."""
    return {
        "90,000 content blocks": _wrap_content(b",".join([b'{"type":"text","text":""}'] * 90_000)),
        "2,000 content blocks": _wrap_content(b",".join([b'{"type":"text","text":"\\u202ehello"}'] * 2_000)),
        "a block of four megabytes": _wrap_content(b'{"type":"text","text":"' + b"a" * _ANSWER_BYTES + b'"}'),
        "an error of many blocks": _wrap_content(b",".join([b'{"type":"text","text":" "}'] * 2_000), is_error=True),
        "many objects": _wrap_structured(b"[" + b",".join([b"{}"] * 95_000) + b"]"),
        "too many objects": _wrap_structured(b"[" + b",".join([b"{}"] * 1_300_000) + b"]"),
        "floats": _wrap_structured(b"[" + b",".join([b"0.12345678901234567"] * 95_000) + b"]"),
        "wide": _wrap_structured(b"{" + b",".join(b'"n%d":0' % each for each in range(95_000)) + b"}"),
        "sensitive names": _wrap_structured(
            b"{" + b",".join(b'"password%d":"x"' % each for each in range(95_000)) + b"}"
        ),
        "long names": _wrap_structured(
            b"{" + b",".join(b'"%d%s":"x"' % (each, b"Ab_" * 600) for each in range(2_000)) + b"}"
        ),
        "deep": _wrap_structured(b"[" * 90 + b"]" * 90),
        "deep and wide": _wrap_structured(b"[" + b",".join([b"[" * 80 + b"]" * 80] * 1_150) + b"]"),
        "too deep": _wrap_structured(b"[" * 1_000_000 + b"]" * 1_000_000),
        "combining marks": _wrap_structured(orjson.dumps("e" + "\u0301" * 1_900_000)),
        "directions": _wrap_structured(orjson.dumps("\u202e\u200b" * 600_000)),
        "escapes": _wrap_structured(b'"' + b"\\u00e4" * 650_000 + b'"'),
        "many short texts": _wrap_structured(b"[" + b",".join([b'"\\u202e\\u0301"'] * 95_000) + b"]"),
    }


def build_streams() -> Mapping[str, bytes]:
    """Build what a server sends before its answer in an event stream."""
    params = b'{"progressToken":1,"progress":%d}'
    progress = b'data: {"jsonrpc":"2.0","method":"notifications/progress","params":' + params + b"}\n\n"
    return {
        "empty events": b"\n" * 3_000_000,
        "comments": b":\n" * 1_500_000,
        "small events": b"data: {}\n\n" * 300_000,
        "lines of one event": b"data: 0\n" * 400_000 + b"\n",
        "progress": b"".join(progress % each for each in range(30_000)),
    }


def build_schemas() -> Mapping[str, dict[str, Any]]:
    """Build schemas that are costly to walk, compile or describe."""
    objects = {"type": "object"}
    return {
        "references to many alternatives": {
            **objects,
            "properties": {f"p{each}": {"$ref": "#/$defs/D"} for each in range(1_500)},
            "$defs": {"D": {"allOf": [{"type": "string"}] * 3_000}},
        },
        "references in a chain": {
            **objects,
            "properties": {"a": {"$ref": "#/$defs/d0"}},
            "$defs": {
                f"d{each}": {"allOf": [{"$ref": f"#/$defs/d{each + 1}"}] * 2} if each < 60 else {"type": "string"}
                for each in range(61)
            },
        },
        "nested quantifiers": {**objects, "patternProperties": {"^(a+)+$": {"type": "string"}}},
        "many patterns": {
            **objects, "patternProperties": {f"^(a{each}|b)+$": {"type": "string"} for each in range(4_000)}
        },
        "a costly pattern": {**objects, "properties": {"a": {"type": "string", "pattern": "(\\w{1,30}){1,30}$"}}},
        "many costly patterns": {
            **objects,
            "properties": {f"p{each}": {"type": "string", "pattern": f"^(\\p{{L}}|x{{1,{each % 500 + 1}}})+$"}
                           for each in range(3_000)},
        },
        "many properties": {
            **objects,
            "properties": {f"p{each}": {"type": "string", "description": "x" * 80} for each in range(4_000)},
        },
        "small properties": {**objects, "properties": {f"p{each}": {} for each in range(18_000)}},
        "many alternatives": {
            **objects, "properties": {"a": {"anyOf": [{"type": "object", "required": [f"r{each}"]}
                                                      for each in range(6_000)]}}
        },
        "nested alternatives": _nest_alternatives(40),
        "parts that refer to each other": {
            **objects, "properties": {"a": {"$ref": "#/$defs/d0"}},
            "$defs": {f"d{each}": {"anyOf": [{"$ref": f"#/$defs/d{other}"} for other in range(9)],
                                   "unevaluatedItems": False} for each in range(9)},
        },
        "patterns of letters": {
            **objects, "properties": {f"p{each}": {"type": "string", "pattern": rf"[\w\p{{L}}]{{{150 + each}}}"}
                                      for each in range(50)},
        },
        "a long enumeration": {**objects, "properties": {"a": {"enum": [f"value {each}" for each in range(18_000)]}}},
        "deep": _nest_properties(28),
        "a long description": {**objects, "description": "\u202e\u0301" * 60_000, "properties": {}},
        "encoded words": {
            **objects, "properties": {"q": {"type": "string", "description": _encode_words(28)}}
        },
    }  # fmt: skip


def build_definitions() -> Mapping[str, bytes]:
    """Build the lists of tools that servers declare: each schema alone, and many tools at once."""
    lists = {name: [_declare(schema)] for name, schema in build_schemas().items()}
    blob = _encode_words(1)
    long_words = " ".join([blob] * 4)[:32_000]
    lists |= {
        "a thousand tools": [_declare({"type": "object"}, f"tool_{each}") for each in range(1_000)],
        "a thousand large tools": [
            _declare({"type": "object", "properties": {f"p{each}": {"type": "string"} for each in range(80)}}, f"t{n}")
            for n in range(990)
        ],
        "hundred encoded descriptions": [
            _declare({"type": "object"}, f"tool_{each}", description=long_words) for each in range(100)
        ],
        "hundred floods of marks": [
            _declare({"type": "object"}, f"tool_{each}", description="\u202ee\u0301" * 5_000) for each in range(100)
        ],
        "similar names": [
            _declare({"type": "object"}, f"l\u043e\u043ekup{'_' * (each % 60)}{each}") for each in range(900)
        ],
        "twelve large pattern schemas": [_declare(build_schemas()["many patterns"], f"t{each}") for each in range(12)],
    }
    return {name: orjson.dumps(tools) for name, tools in lists.items()}


def build_rules() -> Mapping[str, str]:
    """Build Cedar rules within the size of a request."""
    permit = "permit (principal, action, resource)"
    marks = "\u0301" * 300_000
    alternatives = " || ".join(f'principal == User::"u{each}"' for each in range(9_000))
    like = "*" + "a" * 4_000 + "b"
    return {
        "like patterns": "\n".join(
            f'@id("r{each}") {permit} when {{ context.facts has name && context.facts.name like "{like}{each}" }};'
            for each in range(40)
        ),
        "more like patterns": "\n".join(
            f'@id("r{each}") {permit} when {{ context.facts has name && context.facts.name like "{like}{each}" }};'
            for each in range(200)
        ),
        "stars": f'{permit} when {{ context.facts has name && context.facts.name like "{"*a" * 4_000}" }};',
        "many rules": "\n".join(
            f'@id("r{each}") forbid (principal == User::"u{each}", action, resource);' for each in range(11_000)
        ),
        "one long rule": f"{permit} when {{ {alternatives} }};",
        "a large set": f"{permit} when {{ [" + ",".join(f'"{each}"' for each in range(80_000)) + '].contains("a") };',
        "deep conditions": f"{permit} when {{ " + "(" * 300 + "true" + ")" * 300 + " };",
        "deep negations": f"{permit} when {{ " + "!" * 4 + "(" * 100 + "true" + ")" * 100 + " };",
        "many errors": "\n".join(f'@id("r{each}") {permit} when {{ context.nothing{each} }};' for each in range(8_000)),
        "broken": "permit (" * 100_000,
        "unicode": f'@id("x") {permit} when {{ context.facts has name && context.facts.name == "{marks}" }};',
        "annotations": "\n".join(f'@id("r{each}")@reason("{"x" * 60}") {permit};' for each in range(7_000)),
    }


def _wrap_content(blocks: bytes, *, is_error: bool = False) -> bytes:
    error = b',"isError":true' if is_error else b""
    return b'{"resultType":"complete","content":[' + blocks + b"]" + error + b"}"


def _wrap_structured(value: bytes) -> bytes:
    return b'{"resultType":"complete","content":[],"structuredContent":{"value":' + value + b"}}"


def _declare(schema: dict[str, Any], name: str = "lookup", description: str = _WORDS) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": schema, "outputSchema": schema}


def _nest_properties(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {f"p{each}": schema if each == 0 else {} for each in range(100)}}
    return schema


def _nest_alternatives(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema, {"type": "integer"}, {"allOf": [{"type": "object"}] * 20}]}
    return {"type": "object", "properties": {"a": schema}}


def _encode_words(count: int) -> str:
    blob = base64.b64encode(b"a" * 5_999).decode().rstrip("=")[:7_996]
    return " ".join([blob] * count)
