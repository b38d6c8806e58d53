"""A gateway whose drift guard compares definitions as they were written, order and all."""

import json
from collections.abc import Mapping
from typing import Any

from deputize.core import servers
from deputize.core.canonical import digest
from proofs.kit.variant import serve_changed


def written(said: Mapping[str, Any]) -> str:
    return digest({"written": json.dumps(said)})


if __name__ == "__main__":
    vars(servers)["digest_of"] = written
    serve_changed(lambda gateway: gateway)
