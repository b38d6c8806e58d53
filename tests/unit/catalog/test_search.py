"""Keyword search: the exact name first, the best words next, and nothing learned about hidden tools."""

import asyncio

import pytest

from deputize.catalog.search import Found, SearchIndex, words
from deputize.catalog.snapshot import TenantTools
from deputize.core.contract import LifecycleState
from tests.unit.catalog.contracts import contract, snapshot_of, version_of

pytestmark = pytest.mark.requirement("REG-1")


def catalog() -> TenantTools:
    return snapshot_of(
        version_of(contract(description="Look up one customer by number.", aliases=["crm.lookup"])),
        version_of(contract(name="delete_user", description="Remove a customer for good.", tags=["gdpr"])),
        version_of(contract(namespace="mail", name="send", description="Send a message to a customer.")),
        version_of(contract(namespace="billing", name="list_invoices", description="All invoices of a customer.",
                            search_hint="receipts, payments")),
        version_of(contract(namespace="lab", name="secret_tool", description="Fly a zeppelin."), LifecycleState.DRAFT),
    )  # fmt: skip


def index_of(tools: TenantTools) -> SearchIndex:
    index = SearchIndex()
    index.follow(tools)
    return index


def names(found: Found) -> list[str]:
    return [each.name for each in found.matches]


INDEX = index_of(catalog())
ALL = frozenset(catalog().tools)


@pytest.mark.parametrize("query", ["mail.send", "mail__send", " mail.send "])
def test_an_exact_name_comes_first(query: str) -> None:
    found = INDEX.search(query, ALL)
    assert found.matches[0].name == "mail.send"
    assert found.matches[0].exact


def test_an_alias_counts_as_the_name() -> None:
    assert INDEX.search("crm.lookup", ALL).matches[0].exact


@pytest.mark.parametrize(
    ("query", "first"),
    [("invoice", "billing.list_invoices"), ("payments", "billing.list_invoices"), ("GDPR", "crm.delete_user"),
     ("send a message", "mail.send"), ("getUser", "crm.get_user"), ("remove customer", "crm.delete_user"),
     ("invo", "billing.list_invoices")],
)  # fmt: skip
def test_the_best_words_win(query: str, first: str) -> None:
    assert names(INDEX.search(query, ALL))[0] == first


def test_no_match_is_an_answer_a_program_can_read() -> None:
    for query in ("weather", "", "the of", "zeppelin", "\x00", "x" * 5000):
        assert INDEX.search(query, ALL).to_json() == {"matches": [], "reason": "no_match"}


def test_only_visible_tools_are_found_counted_and_weighed() -> None:
    visible = {"crm.get_user", "mail.send"}
    alone = index_of(snapshot_of(*(each for entry in catalog() if entry.name in visible for each in entry.versions)))
    for query in ("customer", "user", "send", "crm.delete_user", "invoice", "cust"):
        assert INDEX.search(query, visible) == alone.search(query, visible)
        assert INDEX.search(query, list(visible)) == alone.search(query, visible)


def test_words_of_hidden_tools_take_nobodys_place() -> None:
    shown = version_of(contract(namespace="mail", name="send", description="Sends refunds by post."))
    letters = "abcdefghijklmnop"
    words_like_it = " ".join(f"ref{one}{other}" for one in letters for other in letters)
    hidden = version_of(contract(namespace="lab", name="crowd", description=words_like_it))
    for tools in (snapshot_of(shown), snapshot_of(shown, hidden)):
        assert names(index_of(tools).search("ref", frozenset({"mail.send"}))) == ["mail.send"]


def test_the_index_follows_changes_and_leaves_the_rest() -> None:
    tools = catalog()
    index = index_of(tools)
    newer = snapshot_of(version_of(contract(version="1.1.0", description="Fetch one zebra by number."))).tools
    gone = snapshot_of(
        version_of(contract(namespace="mail", name="send", description="Send a message."), LifecycleState.RETIRED)
    ).tools
    index.follow(tools.changed(2, {**newer, **gone}))
    assert names(index.search("zebra", ALL)) == ["crm.get_user"]
    assert index.search("zebra", ALL).matches[0].version == "1.1.0"
    assert "crm.get_user" not in names(index.search("look", ALL))
    assert names(index.search("message", ALL)) == []
    index.follow(snapshot_of())
    assert index.search("customer", ALL).reason == "no_match"


async def test_a_gateway_may_catch_up_in_small_steps() -> None:
    tools = snapshot_of(*(version_of(contract(name=f"tool{n}", description=f"Number {n} of many.")) for n in range(60)))
    index = SearchIndex()
    await asyncio.gather(index.catch_up(tools), index.catch_up(tools))
    assert index.search("many", frozenset(tools.tools)) == index_of(tools).search("many", frozenset(tools.tools))


def test_words_are_split_and_made_singular() -> None:
    assert words("listOpenInvoices, HTTPServer of the categories_v2") == [
        "list", "open", "invoice", "http", "server", "category", "v", "2",
    ]  # fmt: skip


def test_the_number_of_matches_is_bounded() -> None:
    assert len(INDEX.search("customer", ALL, limit=2).matches) == 2
