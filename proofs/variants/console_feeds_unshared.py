"""A gateway in which everyone who follows the audit reads it for themselves, and formats what they get."""

from collections.abc import Iterator
from contextlib import contextmanager

from deputize.operations.audit import tail
from proofs.kit.gateway_variant import serve_variant
from proofs.variants.console_sessions import print_sessions


@contextmanager
def _join_alone(self: tail.AuditTail, tenant: str) -> Iterator[tail._TenantFeed]:
    feed = tail._TenantFeed(self._reader, tenant)
    try:
        yield feed
    finally:
        feed.close()


if __name__ == "__main__":
    tail.AuditTail._join = _join_alone  # type: ignore[method-assign]
    serve_variant(print_sessions)
