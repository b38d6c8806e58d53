"""A gateway whose drift guard looks at descriptions alone, as clients do that hash what they show to people."""

from collections.abc import Mapping
from typing import Any

from deputize.core.canonical import compute_digest
from deputize.core.mcp import servers
from proofs.kit.gateway_variant import serve_variant


def digest_description(definition: Mapping[str, Any]) -> str:
    return compute_digest({"name": definition["name"], "description": definition.get("description")})


if __name__ == "__main__":
    vars(servers)["compute_definition_digest"] = digest_description
    serve_variant(lambda gateway: gateway)
