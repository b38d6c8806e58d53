"""A gateway that returns results and errors of tools without comparing them with the contract's schemas."""

from typing import Any

from deputize.catalog.compiled_tool import CompiledTool
from proofs.kit.gateway_variant import serve_variant

_compile_tool = CompiledTool.__init__


def compile_without_output(self: CompiledTool, *positional: Any, **keywords: Any) -> None:
    _compile_tool(self, *positional, **keywords)
    self.is_valid_output = lambda instance: True


def find_no_mismatches(_self: CompiledTool, _document: Any) -> list[dict[str, str]]:
    return []


if __name__ == "__main__":
    for name, replacement in (("__init__", compile_without_output), ("list_error_mismatches", find_no_mismatches)):
        setattr(CompiledTool, name, replacement)
    serve_variant(lambda gateway: gateway)
