"""What MCP servers have beside tools, as contracts."""

import pytest

from deputize.catalog.exposed import exposed
from deputize.catalog.importers.mcp_offers import METHODS, contract_of, item_served, word_of
from deputize.core.contract import Effects, MutationClass
from deputize.core.servers import Definition, Kind, method_of
from deputize.core.settings import McpServer

DOCS = McpServer(
    name="docs", url="http://docs.example/mcp", resources=("docs:*",), scopes=("docs:read",), credential="vault",
    secret="docs/key",
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_a_contract_that_reads_as_the_operator_says(method: str) -> None:
    contract = contract_of(DOCS, Definition.of({"name": method}, Kind.METHOD), word="a_word", version="1.0.0")
    assert (contract.effects, contract.mutation_class) == (Effects.READ, MutationClass.READ)
    assert (contract.auth.scopes, contract.auth.credential, contract.auth.secret) == (
        ("docs:read",), "vault", "docs/key",
    )  # fmt: skip
    assert method_of(contract.handler.driver, contract.handler.target) == method
    assert contract.provider == "docs"


def test_rules_can_look_at_what_is_read() -> None:
    facts = {
        method: {
            fact.name
            for fact in exposed(
                contract_of(DOCS, Definition.of({"name": method}, Kind.METHOD), word="a", version="1.0.0")
            )
        }
        for method in METHODS
    }
    assert facts == {"resources/read": {"resource_uri"}, "prompts/get": {"prompt_name"}, "completion/complete": set()}


def test_a_tool_that_has_the_name_keeps_it() -> None:
    assert word_of("resources/read", ()) == "read_resource"
    assert word_of("resources/read", {"read_resource", "read_resource_2"}) == "read_resource_3"


def test_nothing_is_served_that_the_operator_did_not_name() -> None:
    unsaid = McpServer(name="docs", url="http://docs.example/mcp")
    items = ["resource:docs://a", "template:docs://{a}", "prompt:a", *(f"method:{each}" for each in METHODS)]
    assert not any(item_served(unsaid, each) for each in items)
    assert [each for each in items if item_served(DOCS, each)] == [
        "resource:docs://a", "template:docs://{a}", "method:resources/read", "method:completion/complete",
    ]  # fmt: skip
    assert item_served(unsaid, "instructions")
    assert item_served(unsaid, "tool:anything")
