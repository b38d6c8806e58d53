"""A server gets a few replies in each second, and again in the next."""

from deputize.execute.upstreams.reply_limit import MAX_REPLIES_PER_SECOND, ReplyLimit


def test_each_second_has_its_own_replies() -> None:
    now = 100.0
    limit = ReplyLimit(lambda: now)
    assert sum(limit.count_reply() for _ in range(1_000)) == MAX_REPLIES_PER_SECOND
    now = 100.9
    assert not limit.count_reply()
    now = 101.0
    assert sum(limit.count_reply() for _ in range(1_000)) == MAX_REPLIES_PER_SECOND
