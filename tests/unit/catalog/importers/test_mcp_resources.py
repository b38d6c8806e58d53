"""Test the contracts for resources, prompts and completions of MCP servers."""

import pytest

from deputize.catalog.importers.mcp_resources import METHODS, build_method_contract, choose_method_name, is_item_served
from deputize.catalog.policy_facts import list_facts
from deputize.core.contract.contract import Effects, MutationClass
from deputize.core.mcp.servers import Definition, DefinitionKind, parse_mcp_method
from deputize.core.settings import McpServerSettings

DOCS = McpServerSettings(
    name="docs", url="http://docs.example/mcp", resources=("docs:*",), scopes=("docs:read",), credential="vault",
    secret="docs/key",
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_a_contract_that_reads_as_the_operator_says(method: str) -> None:
    contract = build_method_contract(
        DOCS,
        Definition.from_declaration({"name": method}, DefinitionKind.METHOD),
        registered_name="a_word",
        version="1.0.0",
    )
    assert (contract.effects, contract.mutation_class) == (Effects.READ, MutationClass.READ)
    assert (contract.auth.scopes, contract.auth.credential, contract.auth.secret) == (
        ("docs:read",), "vault", "docs/key",
    )  # fmt: skip
    assert parse_mcp_method(contract.handler.driver, contract.handler.target) == method
    assert contract.provider == "docs"


def test_policies_can_read_the_uri_of_a_resource() -> None:
    facts = {
        method: {
            fact.name
            for fact in list_facts(
                build_method_contract(
                    DOCS,
                    Definition.from_declaration({"name": method}, DefinitionKind.METHOD),
                    registered_name="a",
                    version="1.0.0",
                )
            )
        }
        for method in METHODS
    }
    assert facts == {"resources/read": {"resource_uri"}, "prompts/get": {"prompt_name"}, "completion/complete": set()}


def test_a_tool_that_has_the_name_keeps_it() -> None:
    assert choose_method_name("resources/read", ()) == "read_resource"
    assert choose_method_name("resources/read", {"read_resource", "read_resource_2"}) == "read_resource_3"


def test_nothing_is_served_that_the_operator_did_not_name() -> None:
    unsaid = McpServerSettings(name="docs", url="http://docs.example/mcp")
    items = ["resource:docs://a", "template:docs://{a}", "prompt:a", *(f"method:{each}" for each in METHODS)]
    assert not any(is_item_served(unsaid, each) for each in items)
    assert [each for each in items if is_item_served(DOCS, each)] == [
        "resource:docs://a", "template:docs://{a}", "method:resources/read", "method:completion/complete",
    ]  # fmt: skip
    assert is_item_served(unsaid, "instructions")
    assert is_item_served(unsaid, "tool:anything")
