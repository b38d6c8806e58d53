"""A gateway whose drift guard looks at descriptions alone, as clients do that hash what they show to people."""

from collections.abc import Mapping
from typing import Any

from deputize.core import servers
from deputize.core.canonical import digest
from proofs.kit.variant import serve_changed


def described(said: Mapping[str, Any]) -> str:
    return digest({"name": said["name"], "description": said.get("description")})


if __name__ == "__main__":
    vars(servers)["digest_of"] = described
    serve_changed(lambda gateway: gateway)
