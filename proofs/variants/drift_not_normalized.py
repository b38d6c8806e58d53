"""A gateway whose drift guard compares definitions as they were written, order and all."""

import json
from collections.abc import Mapping
from typing import Any

from deputize.core.canonical import compute_digest
from deputize.core.mcp import servers
from proofs.kit.gateway_variant import serve_variant


def digest_as_written(definition: Mapping[str, Any]) -> str:
    return compute_digest({"written": json.dumps(definition)})


if __name__ == "__main__":
    vars(servers)["compute_definition_digest"] = digest_as_written
    serve_variant(lambda gateway: gateway)
