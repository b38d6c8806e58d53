"""Render the OpenAPI document as one HTML page, without scripts or anything loaded from elsewhere."""

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


def render_docs_page(document: dict[str, Any]) -> str:
    """Render the page."""
    info = document["info"]
    by_tag: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            by_tag.setdefault(operation.get("tags", ["other"])[0], []).append(_render_operation(path, verb, operation))
    sections = "".join(f"<h2>{escape(tag)}</h2>{''.join(entries)}" for tag, entries in by_tag.items())
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])} API</title>"
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('description', ''))}</p>"
        f"<p>For programs: <a href=/openapi.json>openapi.json</a>. Send <code>Authorization: Bearer TOKEN</code>; in "
        f"development, <code>deputize token</code> prints one.</p>{sections}</html>"
    )


def _render_operation(path: str, verb: str, operation: dict[str, Any]) -> str:
    description = escape(operation.get("description", ""))
    return (
        f"<details><summary><span class=verb>{verb.upper()}</span> <code>{escape(path)}</code> "
        f"{escape(operation.get('summary', ''))}{' (deprecated)' if operation.get('deprecated') else ''}</summary>"
        f"<p>{description}</p>"
        f"{_render_parameters(operation)}{_render_body(operation)}{_render_responses(operation)}</details>"
    )


def _render_parameters(operation: dict[str, Any]) -> str:
    rows = [
        (f"{each['name']} ({each['in']}{', required' if each.get('required') else ''})", _get_description(each))
        for each in operation.get("parameters", ())
    ]
    return _render_table("Parameters", rows)


def _get_description(parameter: dict[str, Any]) -> str:
    description: str = parameter.get("description") or parameter.get("schema", {}).get("description", "")
    return description


def _render_body(operation: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    return _render_table(
        "Body", [(media, _extract_model_name(each.get("schema", {}))) for media, each in content.items()]
    )


def _render_responses(operation: dict[str, Any]) -> str:
    return _render_table(
        "Responses", [(status, each["description"]) for status, each in operation["responses"].items()]
    )


def _extract_model_name(schema: dict[str, Any]) -> str:
    reference: str = schema.get("$ref", "")
    return reference.rpartition("/")[2]


def _render_table(title: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    table_rows = "".join(f"<tr><th><code>{escape(name)}</code><td>{escape(description)}" for name, description in rows)
    return f"<table><caption>{title}</caption>{table_rows}</table>"
