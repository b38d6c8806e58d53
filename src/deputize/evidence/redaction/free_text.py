"""Redact documents without a schema: what a tool says about a call, such as its preview or its error.

Fields that the tool's schemas call sensitive are hidden by name, at any depth. Sensitive values of the call's arguments
are hidden by value, also inside a longer text. What looks like a secret or like personal data is hidden too. In doubt a
value is hidden.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from deputize.core.sensitive.known_paths import KnownPaths
from deputize.core.sensitive.marks import REDACTION_MARK
from deputize.core.sensitive.names import is_sensitive_name
from deputize.core.sensitive.text import DocumentSearch, redact_error_text
from deputize.evidence.redaction.plan import RedactionPlan

# Shorter values are hidden only where they stand alone; inside other words they would match by chance.
_MIN_SUBSTRING_LENGTH: Final = 4
# With more sensitive values than this, all text is hidden: every text would have to be searched for every value.
_MAX_SUBSTRINGS: Final = 200
# Drivers cut long texts, perhaps inside a sensitive value: so much of its beginning is searched for at the end.
_MAX_CUT_LENGTH: Final = 300


class FreeTextRedactor:
    """Hides the sensitive names of a tool's schemas and the sensitive values of one call's arguments."""

    __slots__ = ("_inside", "_names", "_search", "_whole")

    def __init__(self, input_plan: RedactionPlan, output_plan: RedactionPlan, arguments: Mapping[str, Any]) -> None:
        """Take the plans of the tool's input and output, and this call's arguments."""
        self._names = input_plan.names | output_plan.names
        self._search = DocumentSearch()
        self._whole = {
            text for value in input_plan.collect_sensitive_values(arguments) for text in _iterate_texts(value)
        } - {""}
        # Longest first: one may be part of another.
        self._inside = sorted(
            (text for text in self._whole if len(text) >= _MIN_SUBSTRING_LENGTH), key=len, reverse=True
        )

    def redact(self, value: Any, path: str, paths: list[str]) -> Any:
        """Return the value with sensitive parts replaced, and add their paths to `paths`."""
        if isinstance(value, dict):
            return self._redact_fields(value, path, paths)
        if isinstance(value, list | tuple):
            return [self.redact(each, f"{path}/{index}", paths) for index, each in enumerate(value)]
        if value is None or isinstance(value, bool):
            return value
        text = self._redact_text(str(value))
        if text == str(value):
            return value
        paths.append(path)
        return text

    def redact_message(self, message: str, known_paths: KnownPaths) -> str:
        """Return an error's message without sensitive values, secrets, and paths of files that are not known."""
        text = self._redact_text(message)
        for secret in self._inside:
            text = _hide_cut_value(text, secret)
        return redact_error_text(text, known_paths)

    def _redact_fields(self, value: dict[str, Any], path: str, paths: list[str]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, each in value.items():
            visible_name = _find_free_name(self._redact_text(name), result)
            field_path = f"{path}/{visible_name.replace('~', '~0').replace('/', '~1')}"
            if name in self._names or is_sensitive_name(name):
                paths.append(field_path)
                result[visible_name] = REDACTION_MARK
            else:
                result[visible_name] = self.redact(each, field_path, paths)
        return result

    def _redact_text(self, text: str) -> str:
        return self._search.redact(self.hide_values(text))

    def hide_values_in(self, value: Any) -> Any:
        """Hide the sensitive values of the call's arguments in each text and number of a document, but not in names."""
        if not self._whole:
            return value
        if isinstance(value, dict):
            return {name: self.hide_values_in(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self.hide_values_in(each) for each in value]
        if value is None or isinstance(value, bool):
            return value
        text = self.hide_values(str(value))
        return value if text == str(value) else text

    def hide_names_in(self, value: Any) -> Any:
        """Hide the sensitive values of the call's arguments in the names of a document's fields."""
        if not self._whole:
            return value
        if isinstance(value, list):
            return [self.hide_names_in(each) for each in value]
        if not isinstance(value, dict):
            return value
        result: dict[str, Any] = {}
        for name, each in value.items():
            result[_find_free_name(self.hide_values(name), result)] = self.hide_names_in(each)
        return result

    def hide_values(self, text: str) -> str:
        """Hide the sensitive values of the call's arguments in a text, and nothing else."""
        if text in self._whole or len(self._inside) > _MAX_SUBSTRINGS:
            return REDACTION_MARK
        for secret in self._inside:
            text = text.replace(secret, REDACTION_MARK)
        return text


def _find_free_name(name: str, fields: Mapping[str, Any]) -> str:
    """Find a name that no field has yet: two may be equal once redacted, and both stay."""
    while name in fields:
        name += "'"
    return name


def _hide_cut_value(text: str, value: str) -> str:
    """Hide the beginning of a value at the very end of a text."""
    for length in range(min(len(value) - 1, len(text), _MAX_CUT_LENGTH), _MIN_SUBSTRING_LENGTH - 1, -1):
        if text.endswith(value[:length]):
            return text[:-length] + REDACTION_MARK
    return text


def _iterate_texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _iterate_texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _iterate_texts(each)
    elif value is not None and not isinstance(value, bool):
        yield str(value)
