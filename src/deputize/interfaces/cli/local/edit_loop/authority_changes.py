"""Compare policies, contracts and settings with those in use, for the person who confirms what changes authority."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic_core import to_jsonable_python

from deputize.core.contract.contract import Contract
from deputize.core.sensitive.text import redact_secrets
from deputize.govern.policy.policy_parser import PolicyFile

Document = tuple[str, bytes | None, bytes | None]
"""The name of a document, and its content before and after."""
# Where this gateway listens on its host, and what it logs; every other setting counts as authority.
NEUTRAL_SETTINGS = frozenset({"server.port", "server.metrics_port", "telemetry.log_level", "telemetry.log_json"})


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingChange:
    """One setting that differs from what the gateway was started with."""

    key: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.key}: {self.old} → {self.new}"

    @property
    def has_authority(self) -> bool:
        """Whether callers or agents may do more because of it, as far as its name tells."""
        return self.key not in NEUTRAL_SETTINGS


def compare_settings(old: BaseModel, new: BaseModel, prefix: str = "") -> Iterator[SettingChange]:
    """Compare two settings field by field. Secrets are compared, and not shown."""
    for name in type(old).model_fields:
        key, old_value, new_value = f"{prefix}{name}", getattr(old, name), getattr(new, name)
        if isinstance(old_value, BaseModel) and type(old_value) is type(new_value):
            yield from compare_settings(old_value, new_value, f"{key}.")
        elif old_value != new_value:
            yield SettingChange(key=key, old=_format_value(old_value), new=_format_value(new_value))


def _format_value(value: Any) -> str:
    if isinstance(value, SecretStr):
        return "(secret)"
    return redact_secrets(json.dumps(to_jsonable_python(value), ensure_ascii=False))


def build_contract_document(old: Contract | None, new: Contract) -> Document:
    """Build a document of the fields in which two contracts differ, a line for each thing they say."""
    new_fields = new.model_dump(mode="json")
    if old is None:
        return new.full_name, None, _format_fields(new_fields)
    old_fields = old.model_dump(mode="json")
    names = [name for name in new_fields | old_fields if new_fields.get(name) != old_fields.get(name)]
    old_part, new_part = ({name: fields.get(name) for name in names} for fields in (old_fields, new_fields))
    return new.full_name, _format_fields(old_part), _format_fields(new_part)


def _format_fields(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False).encode()


def list_policy_documents(old: Sequence[PolicyFile], new: Sequence[PolicyFile]) -> list[Document]:
    """List the policy files that differ, each with its content before and after."""
    old_texts, new_texts = ({file.path: file.text.encode() for file in files} for files in (old, new))
    return [
        (path, old_texts.get(path), new_texts.get(path))
        for path in sorted(old_texts.keys() | new_texts.keys())
        if old_texts.get(path) != new_texts.get(path)
    ]
