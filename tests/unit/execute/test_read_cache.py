"""Results of reads are found by all of their key and while they are fresh, and no tenant takes the room of others."""

import pytest

from deputize.core.outcome import Result
from deputize.execute.read_cache import MAX_RESULT_BYTES, ReadCache
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("INV-13")

STOCK = make_contract(namespace="shop", name="stock", effects="read", external_service="warehouse")
NOW = [0.0]


def make_cache(**limits: int) -> ReadCache:
    NOW[0] = 1000.0
    return ReadCache(lambda: NOW[0], **limits)


def keep(cache: ReadCache, tenant: str, arguments: bytes, result: bytes = b'{"result":1}', user: str = "ana") -> None:
    pending_read = cache.begin_read(tenant, STOCK, (user,), arguments)
    cache.keep_result(tenant, STOCK, pending_read, result, Result(payload=None))


def has(cache: ReadCache, tenant: str, arguments: bytes, *, user: str = "ana", max_age: float = 60) -> bool:
    return cache.find_result(tenant, cache.begin_read(tenant, STOCK, (user,), arguments), max_age) is not None


def test_a_result_is_found_by_its_whole_key_only() -> None:
    cache = make_cache()
    keep(cache, "acme", b"{}")
    assert has(cache, "acme", b"{}")
    assert not has(cache, "globex", b"{}")
    assert not has(cache, "acme", b"{}", user="ben")
    assert not has(cache, "acme", b'{"item":1}')
    other_version = STOCK.model_copy(update={"version": "9.9.9"})
    assert cache.find_result("acme", cache.begin_read("acme", other_version, ("ana",), b"{}"), 60) is None


def test_a_result_is_found_until_its_age_is_over() -> None:
    cache = make_cache()
    keep(cache, "acme", b"{}")
    NOW[0] += 60
    assert has(cache, "acme", b"{}")
    assert not has(cache, "acme", b"{}", max_age=59)
    NOW[0] += 1
    assert not has(cache, "acme", b"{}")


@pytest.mark.parametrize(
    ("change", "is_kept"),
    [
        ({"namespace": "shop"}, False),
        ({"namespace": "desk", "external_service": "warehouse"}, False),
        ({"namespace": "desk", "resources": [{"resource": "shop.orders", "op": "update"}]}, False),
        ({"namespace": "desk"}, True),
    ],
)
def test_a_write_forgets_what_it_may_have_changed(change: dict[str, object], is_kept: bool) -> None:
    cache = make_cache()
    keep(cache, "acme", b"{}")
    keep(cache, "globex", b"{}")
    cache.note_write("acme", make_contract(name="order", effects="write", **change))
    assert has(cache, "acme", b"{}") is is_kept
    assert has(cache, "globex", b"{}")


def test_a_service_that_changed_is_read_again() -> None:
    cache = make_cache()
    keep(cache, "acme", b"{}")
    cache.note_service_change("acme", "other")
    assert has(cache, "acme", b"{}")
    cache.note_service_change("acme", "warehouse")
    assert not has(cache, "acme", b"{}")


def test_a_result_that_was_read_before_a_change_is_not_kept_after_it() -> None:
    cache = make_cache()
    pending_read = cache.begin_read("acme", STOCK, ("ana",), b"{}")
    cache.note_service_change("acme", "warehouse")
    cache.keep_result("acme", STOCK, pending_read, b'{"result":1}', Result(payload=None))
    assert not has(cache, "acme", b"{}")


def test_a_tenant_that_reads_much_loses_its_own_oldest_results_and_nobody_elses() -> None:
    result = b'{"result":"' + b"x" * 10_000 + b'"}'
    cache = make_cache(max_bytes=100_000, max_tenant_bytes=80_000)
    keep(cache, "small", b"{}", result)
    for number in range(50):
        keep(cache, "large", b"%d" % number, result)
        assert has(cache, "small", b"{}")
    assert not has(cache, "large", b"0")
    assert has(cache, "large", b"49")
    # The room of all is used up: the tenant with most makes room.
    keep(cache, "third", b"{}", result)
    keep(cache, "third", b"{1}", result)
    assert has(cache, "small", b"{}")
    assert has(cache, "third", b"{}")
    assert cache._size == sum(each.size for each in cache.tenants.values()) <= 100_000


def test_results_are_few_and_small() -> None:
    cache = make_cache(max_tenant_entries=3)
    for number in range(4):
        keep(cache, "acme", b"%d" % number)
    assert [has(cache, "acme", b"%d" % number) for number in range(4)] == [False, True, True, True]
    keep(cache, "acme", b"{}", b"x" * (MAX_RESULT_BYTES + 1))
    assert not has(cache, "acme", b"{}")
