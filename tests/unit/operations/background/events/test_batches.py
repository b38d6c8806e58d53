"""How events are divided among requests, with the order of each call kept."""

from deputize.evidence.cloud_events import OutgoingEvent
from deputize.operations.background.events.nats_sink import divide_by_call
from deputize.operations.background.events.webhook_sink import take_batch


def make_event(sequence: int, call_id: str | None, *, tenant: str = "acme", size: int = 10) -> OutgoingEvent:
    return OutgoingEvent(
        id=str(sequence), tenant=tenant, call_id=call_id, sequence=sequence, type="t", types=("t",), body=b"x" * size
    )


def test_no_group_has_two_events_of_a_call_and_each_call_keeps_its_order() -> None:
    calls = "abacabadabacaba"
    groups = list(divide_by_call([make_event(n, call) for n, call in enumerate(calls)], 3))
    assert sorted(event.sequence for group in groups for event in group) == list(range(len(calls)))
    for group in groups:
        assert 0 < len(group) <= 3
        assert len({event.call_id for event in group}) == len(group)
    for call in set(calls):
        order = [event.sequence for group in groups for event in group if event.call_id == call]
        assert order == sorted(order)


def test_entries_without_a_call_are_in_one_order_for_each_tenant() -> None:
    events = [make_event(0, None), make_event(1, None), make_event(2, None, tenant="other")]
    groups = [[event.sequence for event in group] for group in divide_by_call(events, 32)]
    assert groups == [[0, 2], [1]]


def test_a_batch_is_limited_by_number_and_by_size_and_never_empty() -> None:
    small, large = [make_event(n, "a") for n in range(150)], [make_event(n, "a", size=400_000) for n in range(4)]
    assert len(take_batch(small)) == 100
    assert len(take_batch(large)) == 2
    assert len(take_batch([make_event(0, "a", size=2_000_000)])) == 1
