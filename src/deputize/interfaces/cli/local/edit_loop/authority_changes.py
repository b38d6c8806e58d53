"""Compare policies and settings with those in use, for the person who confirms what changes authority."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic_core import to_jsonable_python

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
            old_tables, new_tables = _list_named_tables(old_value), _list_named_tables(new_value)
            if old_tables is None or new_tables is None or not _have_one_order(old_tables, new_tables):
                yield SettingChange(key=key, old=_format_value(old_value), new=_format_value(new_value))
            else:
                yield from _compare_tables(old_tables, new_tables, key)


def _list_named_tables(value: Any) -> dict[str, BaseModel] | None:
    """List tables by name, as of `[[servers]]`; None if these are not tables, each with a name of its own."""
    if not isinstance(value, tuple):
        return None
    tables = {each.name: each for each in value if isinstance(each, BaseModel) and hasattr(each, "name")}
    return tables if len(tables) == len(value) else None


def _have_one_order(old: Mapping[str, BaseModel], new: Mapping[str, BaseModel]) -> bool:
    """Check whether tables were only removed, or added behind the others: their order may decide, as that of hooks."""
    kept_names = [name for name in old if name in new]
    return kept_names == [*new][: len(kept_names)]


def _compare_tables(old: Mapping[str, BaseModel], new: Mapping[str, BaseModel], prefix: str) -> Iterator[SettingChange]:
    """Compare tables with names, each that was added or removed by what it sets."""
    for name in {**old, **new}:
        if name in old and name in new:
            yield from compare_settings(old[name], new[name], f"{prefix}.{name}.")
        else:
            values = (_format_value(each[name]) if name in each else "none" for each in (old, new))
            yield SettingChange(key=f"{prefix}.{name}", old=next(values), new=next(values))


def _format_value(value: Any) -> str:
    if isinstance(value, SecretStr):
        return "(secret)"
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_defaults=True)
    return redact_secrets(json.dumps(to_jsonable_python(value), ensure_ascii=False))


def list_policy_documents(old: Sequence[PolicyFile], new: Sequence[PolicyFile]) -> list[Document]:
    """List the policy files that differ, each with its content before and after."""
    old_texts, new_texts = ({file.path: file.text.encode() for file in files} for files in (old, new))
    return [
        (path, old_texts.get(path), new_texts.get(path))
        for path in sorted(old_texts.keys() | new_texts.keys())
        if old_texts.get(path) != new_texts.get(path)
    ]
