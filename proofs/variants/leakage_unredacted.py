"""A gateway that shows everything: no mark, no name and no shape hides a value."""

from typing import Any
from unittest.mock import patch

from deputize.core.sensitive import text
from deputize.evidence.redaction.free_text import FreeTextRedactor
from deputize.evidence.redaction.plan import RedactionPlan
from proofs.kit.gateway_variant import serve_variant


def keep_document(_: RedactionPlan, document: Any, canonical: bytes | None = None) -> tuple[Any, tuple[str, ...]]:
    return document, ()


def keep_text(shown_text: str, _: object) -> str:
    return shown_text


def keep_value(_: FreeTextRedactor, value: Any, path: str, paths: list[str]) -> Any:
    return value


if __name__ == "__main__":
    patch.object(RedactionPlan, "apply", keep_document).start()
    patch.object(RedactionPlan, "apply_marks", keep_document).start()
    patch.object(FreeTextRedactor, "redact", keep_value).start()
    patch.object(FreeTextRedactor, "hide_values", lambda _, shown_text: shown_text).start()
    patch.object(FreeTextRedactor, "redact_message", lambda _, message: message).start()
    patch.object(text, "_redact_until_stable", keep_text).start()
    serve_variant(lambda gateway: gateway)
