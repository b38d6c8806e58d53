"""Test keyword search: exact names first, then the best matches, and no information about hidden tools."""

import asyncio

import pytest

from deputize.catalog.search import SearchIndex, SearchResult, split_words
from deputize.catalog.snapshot import TenantTools
from deputize.core.contract.contract import LifecycleState
from tests.support.contracts import make_contract, make_snapshot, make_version

pytestmark = pytest.mark.requirement("REG-1")


def make_catalog() -> TenantTools:
    return make_snapshot(
        make_version(make_contract(description="Look up one customer by number.", aliases=["crm.lookup"])),
        make_version(make_contract(name="delete_user", description="Remove a customer for good.", tags=["gdpr"])),
        make_version(make_contract(namespace="mail", name="send", description="Send a message to a customer.")),
        make_version(
            make_contract(
                namespace="billing",
                name="list_invoices",
                description="All invoices of a customer.",
                search_hint="receipts, payments",
            )
        ),
        make_version(
            make_contract(namespace="lab", name="secret_tool", description="Fly a zeppelin."), LifecycleState.DRAFT
        ),
    )


def build_index(tools: TenantTools) -> SearchIndex:
    index = SearchIndex()
    asyncio.run(index.update(tools))
    return index


def match_names(result: SearchResult) -> list[str]:
    return [each.name for each in result.matches]


INDEX = build_index(make_catalog())
ALL = frozenset(make_catalog().tools)


@pytest.mark.parametrize("query", ["mail.send", "mail__send", " mail.send "])
def test_an_exact_name_comes_first(query: str) -> None:
    found = INDEX.search(query, ALL)
    assert found.matches[0].name == "mail.send"
    assert found.matches[0].is_exact


def test_an_alias_counts_as_the_name() -> None:
    assert INDEX.search("crm.lookup", ALL).matches[0].is_exact


@pytest.mark.parametrize(
    ("query", "first"),
    [("invoice", "billing.list_invoices"), ("payments", "billing.list_invoices"), ("GDPR", "crm.delete_user"),
     ("send a message", "mail.send"), ("getUser", "crm.get_user"), ("remove customer", "crm.delete_user"),
     ("invo", "billing.list_invoices")],
)  # fmt: skip
def test_the_best_words_win(query: str, first: str) -> None:
    assert match_names(INDEX.search(query, ALL))[0] == first


def test_no_match_is_an_answer_a_program_can_read() -> None:
    for query in ("weather", "", "the of", "zeppelin", "\x00", "x" * 5000):
        assert INDEX.search(query, ALL).to_json() == {"matches": [], "reason": "no_match"}


def test_only_visible_tools_are_found_counted_and_weighed() -> None:
    visible = {"crm.get_user", "mail.send"}
    alone = build_index(
        make_snapshot(*(each for entry in make_catalog() if entry.name in visible for each in entry.versions))
    )
    for query in ("customer", "user", "send", "crm.delete_user", "invoice", "cust"):
        assert INDEX.search(query, visible) == alone.search(query, visible)
        assert INDEX.search(query, list(visible)) == alone.search(query, visible)


def test_words_of_hidden_tools_take_nobodys_place() -> None:
    shown = make_version(make_contract(namespace="mail", name="send", description="Sends refunds by post."))
    letters = "abcdefghijklmnop"
    words_like_it = " ".join(f"ref{one}{other}" for one in letters for other in letters)
    hidden = make_version(make_contract(namespace="lab", name="crowd", description=words_like_it))
    for tools in (make_snapshot(shown), make_snapshot(shown, hidden)):
        assert match_names(build_index(tools).search("ref", frozenset({"mail.send"}))) == ["mail.send"]


def test_the_index_follows_changes_and_leaves_the_rest() -> None:
    tools = make_catalog()
    index = build_index(tools)
    newer = make_snapshot(make_version(make_contract(version="1.1.0", description="Fetch one zebra by number."))).tools
    gone = make_snapshot(
        make_version(
            make_contract(namespace="mail", name="send", description="Send a message."), LifecycleState.RETIRED
        )
    ).tools
    asyncio.run(index.update(tools.replace_entries(2, {**newer, **gone})))
    assert match_names(index.search("zebra", ALL)) == ["crm.get_user"]
    assert index.search("zebra", ALL).matches[0].version == "1.1.0"
    assert "crm.get_user" not in match_names(index.search("look", ALL))
    assert match_names(index.search("message", ALL)) == []
    asyncio.run(index.update(make_snapshot()))
    assert index.search("customer", ALL).reason == "no_match"


async def test_a_gateway_may_catch_up_in_small_steps() -> None:
    tools = make_snapshot(
        *(make_version(make_contract(name=f"tool{n}", description=f"Number {n} of many.")) for n in range(60))
    )
    once, twice = SearchIndex(), SearchIndex()
    await once.update(tools)
    await asyncio.gather(twice.update(tools), twice.update(tools))
    assert twice.search("many", frozenset(tools.tools)) == once.search("many", frozenset(tools.tools))


def test_words_are_split_and_made_singular() -> None:
    assert split_words("listOpenInvoices, HTTPServer of the categories_v2") == [
        "list", "open", "invoice", "http", "server", "category", "v", "2",
    ]  # fmt: skip


def test_the_number_of_matches_is_bounded() -> None:
    assert len(INDEX.search("customer", ALL, limit=2).matches) == 2
