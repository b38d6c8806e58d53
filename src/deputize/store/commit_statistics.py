"""Count commits: how many, of how many rows, and how long they take. Plain numbers, added once for each batch."""

from bisect import bisect_left
from typing import Final

# A commit takes about a millisecond on a local disk, and many while PostgreSQL is away.
COMMIT_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class CommitStatistics:
    """The commits of one writer since the process started."""

    __slots__ = ("buckets", "rows", "seconds")

    def __init__(self) -> None:
        # Commits by how long they took, the last for those above every bound.
        self.buckets = [0] * (len(COMMIT_BUCKETS) + 1)
        self.rows = 0
        self.seconds = 0.0

    def record_commit(self, rows: int, seconds: float) -> None:
        """Count a batch that was committed, with the time of all its attempts."""
        self.buckets[bisect_left(COMMIT_BUCKETS, seconds)] += 1
        self.rows += rows
        self.seconds += seconds
