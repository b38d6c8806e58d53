"""A function without declared effects is a draft: the strictest of everything, for development only."""

import pytest

from deputize.catalog.importers.declaration import WrongDeclaration
from deputize.catalog.importers.python import ATTRIBUTE, tool
from deputize.catalog.registration_rules import admit_contract, collect_gaps
from deputize.core.contract.contract import Contract, Effects
from deputize.core.contract.publication import NO_DESCRIPTION
from deputize.core.errors import ToolNotAdmitted

pytestmark = pytest.mark.requirement("REG-3")


@tool
def count(fruit: str) -> int:
    """Count a fruit in the warehouse."""
    return len(fruit)


@tool(effects="read", examples=[{"fruit": "CHANGEME"}])
def weigh(fruit: str, scale: str = "kg") -> int:
    """CHANGEME: say what it does.

    Args:
        fruit: CHANGEME
        scale: Its unit.
    """
    return len(fruit + scale)


@tool(effects="read")
def silent() -> int:
    return 1


def get_contract(function: object) -> Contract:
    contract: Contract = getattr(function, ATTRIBUTE).contract
    return contract


def list_gaps(function: object) -> list[tuple[str, str]]:
    return [(each.path, each.reason) for each in collect_gaps(get_contract(function))]


def test_a_bare_decorator_declares_the_strictest_and_leaves_the_function() -> None:
    contract = get_contract(count)

    assert count("kiwi") == 4
    assert (contract.full_name, contract.version, contract.is_draft) == ("test_drafts.count", "0.0.0", True)
    assert (contract.effects, contract.requires_user_interaction) == (Effects.DESTRUCTIVE, True)
    assert contract.auth.scopes == ("draft:test_drafts.count",)
    assert contract.description == "Count a fruit in the warehouse."


def test_empty_parentheses_mean_the_same() -> None:
    def shrink(fruit: str) -> int:
        """Count a fruit in the warehouse."""
        return len(fruit)

    assert get_contract(tool(shrink)).digest == get_contract(tool()(shrink)).digest


def test_a_draft_is_admitted_in_development_only() -> None:
    contract = get_contract(count)

    admit_contract(contract, admits_drafts=True)
    with pytest.raises(ToolNotAdmitted, match=r"version 0\.0\.0 is the version of a draft"):
        admit_contract(contract)


def test_a_draft_cannot_give_up_its_person_or_name_a_version() -> None:
    @tool(requires_user_interaction=False, title="Eager")
    def eager() -> int:
        """Do something at once."""
        return 1

    assert get_contract(eager).requires_user_interaction
    with pytest.raises(WrongDeclaration, match="has a version, but does not say what it does"):

        @tool(version="1.0.0")
        def vague() -> int:
            """Do something at once."""
            return 1


@pytest.mark.parametrize("changes", [{"requires_user_interaction": False}, {"effects": Effects.WRITE}])
def test_the_version_of_drafts_is_for_drafts_only(changes: dict[str, object]) -> None:
    contract = get_contract(count).model_copy(update=changes)

    with pytest.raises(ToolNotAdmitted, match="is for tools that declare no effects"):
        admit_contract(contract, admits_drafts=True)


def test_a_placeholder_counts_as_missing() -> None:
    assert list_gaps(weigh) == [
        ("/description", "is missing"),
        ("/input_schema/properties/fruit", "has no description"),
        ("/input_schema/properties/fruit", "has no example"),
        ("/examples", "is missing"),
    ]
    admit_contract(get_contract(weigh), admits_drafts=True)


def test_a_missing_docstring_is_a_gap() -> None:
    assert get_contract(silent).description == NO_DESCRIPTION
    assert list_gaps(silent) == [("/description", "is missing")]


def test_a_fault_is_refused_in_development_too() -> None:
    contract = get_contract(weigh).model_copy(update={"effects": Effects.WRITE})

    with pytest.raises(ToolNotAdmitted, match="requires no scope"):
        admit_contract(contract, admits_drafts=True)
