"""Build the pairs of schemas that are compared: generated ones, and published ones with changes."""

import json
import lzma
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs

from proofs.compatibility.generated_schemas import SchemaGenerator
from proofs.compatibility.schema_mutations import NARROWING, WIDENING, mutate_schema
from proofs.compatibility.small_models import compile_schema

_REAL_SCHEMAS = Path(__file__).parent / "real_schemas.jsonl.xz"


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaPair:
    """An old and a new schema. `is_widened` says that the new one allows all that the old one does, by construction."""

    origin: str
    old: dict[str, Any]
    new: dict[str, Any]
    is_widened: bool


def load_real_schemas() -> list[dict[str, Any]]:
    """Load the published schemas, closed as they are when a server's tools are imported; invalid ones are left out."""
    lines = lzma.decompress(_REAL_SCHEMAS.read_bytes()).decode().splitlines()
    schemas = [_close(json.loads(line)["schema"]) for line in lines]
    return [schema for schema in schemas if _is_schema(schema)]


def build_real_pairs(schemas: list[dict[str, Any]], count: int, rng: random.Random) -> Iterator[SchemaPair]:
    """Change each schema in turn: twice so that it allows more, once so that it may not."""
    for number in range(count):
        schema = schemas[(number // 3) % len(schemas)]
        is_widened = number % 3 < 2
        new = mutate_schema(schema, WIDENING if is_widened else NARROWING, rng)
        if new is not None and _is_schema(new):
            yield SchemaPair(origin="published", old=schema, new=new, is_widened=is_widened)


def build_generated_pairs(count: int, rng: random.Random) -> Iterator[SchemaPair]:
    """Generate schemas, and pair each with another one, or with one that was changed once or twice."""
    generator = SchemaGenerator(rng)
    for number in range(count):
        old = generator.draw_document()
        new: dict[str, Any] | None
        match number % 4:
            case 0:
                new = generator.draw_document()
            case 1:
                new = mutate_schema(old, NARROWING, rng, with_definitions=True)
            case 2:
                new = mutate_schema(old, NARROWING + WIDENING, rng, with_definitions=True)
                new = new and mutate_schema(new, NARROWING + WIDENING, rng, with_definitions=True)
            case _:
                new = mutate_schema(old, WIDENING, rng)
        if new is not None and _is_schema(old) and _is_schema(new):
            yield SchemaPair(origin="generated", old=old, new=new, is_widened=number % 4 == 3)


def _is_schema(schema: dict[str, Any]) -> bool:
    try:
        compile_schema(schema)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
        return False
    return True


def _close(schema: Any) -> Any:
    """Let no object have properties that it does not name, unless it says something about them."""
    if isinstance(schema, list):
        return [_close(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {
        keyword: {name: _close(part) for name, part in value.items()}
        if keyword in ("properties", "$defs") and isinstance(value, dict)
        else value
        if keyword in ("enum", "const", "default", "required")
        else _close(value)
        for keyword, value in schema.items()
    }
    if result.get("type") == "object" and "properties" in result:
        result.setdefault("additionalProperties", False)
    return result
