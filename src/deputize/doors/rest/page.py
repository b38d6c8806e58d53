"""The API document as a page: one file of HTML, nothing loaded from elsewhere, readable without a script."""

from html import escape
from typing import Any

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c1c1c;background:#fff}
h2{margin-top:2.5rem;border-bottom:1px solid #ddd}
summary{cursor:pointer;padding:.4rem 0}code{font:.9em ui-monospace,monospace}
.verb{display:inline-block;min-width:4rem;font-weight:700}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;padding:.25rem .75rem .25rem 0}
@media (prefers-color-scheme:dark){body{color:#e6e6e6;background:#161616}h2{border-color:#444}a{color:#8ab4f8}}
"""


def page(document: dict[str, Any]) -> str:
    info = document["info"]
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            by_tag.setdefault(operation.get("tags", ["other"])[0], []).append(_operation(path, verb, operation))
    sections = "".join(f"<h2>{escape(tag)}</h2>{''.join(shown)}" for tag, shown in by_tag.items())
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])} API</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('description', ''))}</p>"
        f"<p>For programs: <a href=/openapi.json>openapi.json</a>. Send <code>Authorization: Bearer TOKEN</code>; in "
        f"development, <code>deputize token</code> prints one.</p>{sections}</html>"
    )


def _operation(path: str, verb: str, operation: dict[str, Any]) -> str:
    said = escape(operation.get("description", ""))
    return (
        f"<details><summary><span class=verb>{verb.upper()}</span> <code>{escape(path)}</code> "
        f"{escape(operation.get('summary', ''))}</summary><p>{said}</p>"
        f"{_parameters(operation)}{_body(operation)}{_responses(operation)}</details>"
    )


def _parameters(operation: dict[str, Any]) -> str:
    rows = [
        (f"{each['name']} ({each['in']}{', required' if each.get('required') else ''})", _about(each))
        for each in operation.get("parameters", ())
    ]
    return _table("Parameters", rows)


def _about(parameter: dict[str, Any]) -> str:
    said: str = parameter.get("description") or parameter.get("schema", {}).get("description", "")
    return said


def _body(operation: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    return _table("Body", [(media, _model(each.get("schema", {}))) for media, each in content.items()])


def _responses(operation: dict[str, Any]) -> str:
    return _table("Answers", [(status, each["description"]) for status, each in operation["responses"].items()])


def _model(schema: dict[str, Any]) -> str:
    reference: str = schema.get("$ref", "")
    return reference.rpartition("/")[2]


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    shown = "".join(f"<tr><th><code>{escape(name)}</code><td>{escape(about)}" for name, about in rows)
    return f"<table><caption>{title}</caption>{shown}</table>"
