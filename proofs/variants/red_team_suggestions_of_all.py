"""A gateway that suggests names of tools whether or not the caller may see them."""

from unittest.mock import patch

from deputize.catalog.snapshot import TenantTools, VisibilityCheck
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_variant import serve_variant


def _is_public(tools: TenantTools, name: str, visible: VisibilityCheck) -> bool:
    return tools.tools[name].is_public


def change(gateway: Gateway) -> Gateway:
    patch.object(TenantTools, "_is_visible_tool", _is_public).start()
    return gateway


if __name__ == "__main__":
    serve_variant(change)
