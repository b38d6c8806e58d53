"""A service whose one tool is written by hand, in ten lines."""

import hashlib
from pathlib import Path
from typing import Any

from deputize.core.settings import ServiceSettings

MANIFEST = """\
name: weather.forecast
description: Forecast the weather of a city.
http: GET /cities/{city}/forecast
input_schema:
  properties:
    city: {type: string, description: "The city, in English."}
    days: {type: integer, minimum: 1, maximum: 7, description: How many days.}
"""


def make_manifest_service(document: Path | None = None, **more: Any) -> ServiceSettings:
    """Settings of the service; without a document, for tests that do not read it."""
    digest = "0" * 64 if document is None else hashlib.sha256(document.read_bytes()).hexdigest()
    fields = {"name": "weather", "kind": "manifest", "document": document or "weather.yaml", "sha256": digest,
              "url": "https://weather.example"}  # fmt: skip
    return ServiceSettings.model_validate({**fields, **more})
