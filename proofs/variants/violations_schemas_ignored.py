"""A gateway that returns results and errors of tools without comparing them with the contract's schemas."""

from typing import Any

from deputize.catalog.compiled_tool import CompiledTool
from deputize.catalog.validation_job import CompiledSchema
from proofs.kit.gateway_variant import serve_variant

_compile_tool = CompiledTool.__init__


def compile_without_output(self: CompiledTool, *positional: Any, **keywords: Any) -> None:
    _compile_tool(self, *positional, **keywords)
    self.output, self.error = CompiledSchema({}), None


if __name__ == "__main__":
    setattr(CompiledTool, "__init__", compile_without_output)  # noqa: B010 -- mypy refuses the assignment
    serve_variant(lambda gateway: gateway)
