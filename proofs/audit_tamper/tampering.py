"""Change a tenant's log in its database in every way that its owner could, and know where the change is."""

import bisect
import json
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from deputize.evidence.log.tiles import TILE_HEIGHT, TILE_WIDTH
from proofs.audit_tamper.judge import FaultPlace

_LARGEST_WINDOW = 600
_FREE_INDEX = 1_000_000_000
_LETTERS = b"0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(kw_only=True, slots=True)
class LogEditor:
    """Changes a log through the connection of the database's owner, without the triggers that queue entries."""

    connection: asyncpg.Connection
    tenant: str
    random: random.Random
    size: int
    signed_sizes: Sequence[int]
    """The sizes of all checkpoints, in order; the last one is the size of the log."""
    entry_ids: Sequence[UUID]
    """The entry of each leaf."""

    # ---- Edits ----

    async def change_entry(self) -> FaultPlace:
        """Change a letter of an entry."""
        index = self._pick_index()
        await self._change_letter(index)
        return FaultPlace(first=index, last=index)

    async def change_entry_and_leaf(self) -> FaultPlace:
        """Change a letter of an entry, and store the hash that fits it."""
        index = self._pick_index()
        await self._change_letter(index)
        await self._execute(
            r"""update deputize.log_leaves l set hash = sha256('\x00'::bytea || a.entry) from deputize.audit_entries a
                where l.tenant = $1 and l.leaf_index = $2 and a.tenant = $1 and a.id = l.entry_id""",
            index,
        )
        return self._enclose(index)

    async def change_leaf(self) -> FaultPlace:
        """Flip a bit of the hash of an entry."""
        index = self._pick_index()
        place = "tenant = $1 and leaf_index = $2"
        await self._execute(
            f"update deputize.log_leaves set hash = set_bit(hash, $3, 1 - get_bit(hash, $3)) where {place}",
            index,
            self.random.randrange(256),
        )
        return FaultPlace(first=index, last=index)

    async def change_node(self) -> FaultPlace:
        """Flip a bit of the hash of a larger subtree."""
        rows = await self._fetch("select level, node_index from deputize.log_nodes where tenant = $1")
        level, node_index = self.random.choice(rows)
        await self._execute(
            """update deputize.log_nodes set hash = set_bit(hash, $4, 1 - get_bit(hash, $4))
               where tenant = $1 and level = $2 and node_index = $3""",
            level,
            node_index,
            self.random.randrange(256),
        )
        first = node_index << TILE_HEIGHT * level
        return FaultPlace(first=first, last=first + (1 << TILE_HEIGHT * level) - 1)

    async def change_checkpoint(self) -> FaultPlace:
        """Flip a bit of a checkpoint that is not the newest."""
        at = self.random.randrange(len(self.signed_sizes) - 1)
        await self._execute(
            """update deputize.log_checkpoints
               set note = set_bit(note, $3 % (8 * octet_length(note)), 1 - get_bit(note, $3 % (8 * octet_length(note))))
               where tenant = $1 and size = $2""",
            self.signed_sizes[at],
            self.random.randrange(1 << 30),
        )
        return FaultPlace(first=self.signed_sizes[at - 1] if at else 0, last=self.signed_sizes[at] - 1)

    # ---- Deletions and truncations ----

    async def delete_entry(self) -> FaultPlace:
        """Delete an entry, and leave its leaf."""
        index = self._pick_index()
        await self._delete_entries([self.entry_ids[index]])
        return FaultPlace(first=index, last=index)

    async def delete_entry_and_leaf(self) -> FaultPlace:
        """Delete an entry with its leaf: the hashes of its tile are no longer complete."""
        index = self._pick_index()
        await self._delete_entries([self.entry_ids[index]])
        await self._execute("delete from deputize.log_leaves where tenant = $1 and leaf_index = $2", index)
        return self._enclose_tile(index)

    async def delete_and_close_gap(self) -> FaultPlace:
        """Delete an entry with its leaf, move the next ones up, and hide that one is missing behind a repeated one."""
        index = self._pick_index(before_last=1)
        end = min(index + self.random.randrange(1, _LARGEST_WINDOW), self.size - 1)
        await self._delete_entries([self.entry_ids[index]])
        await self._execute("delete from deputize.log_leaves where tenant = $1 and leaf_index = $2", index)
        await self._move_leaves(index + 1, end + 1, -1)
        await self._add_leaf(end, await self._copy_entry(self.entry_ids[end]))
        return self._enclose(index)

    async def truncate_log(self) -> FaultPlace:
        """Delete the last entries and leaves, and leave the checkpoints."""
        size = self._pick_index()
        await self._delete_tail(size)
        return self._enclose_tile(size)

    async def roll_back(self) -> FaultPlace:
        """Make the log what it was at an earlier checkpoint, with everything about it."""
        size = self.random.choice(self.signed_sizes[:-1])
        await self._delete_tail(size)
        for table in ("log_checkpoints", "log_witnessed_checkpoints"):
            await self._execute(f"delete from deputize.{table} where tenant = $1 and size > $2", size)
        await self._execute(
            "delete from deputize.log_nodes where tenant = $1 and (node_index + 1) << (8 * level) > $2", size
        )
        return FaultPlace(first=size, last=self.size - 1)

    # ---- Insertions and reorderings ----

    async def insert_beside_log(self) -> str:
        """Insert an entry that is neither in the log nor queued for it, and return its id."""
        return str(await self._copy_entry(self.entry_ids[self._pick_index()]))

    async def insert_and_push(self) -> FaultPlace:
        """Insert an entry with its leaf, and push the next ones down, the last of them over the edge."""
        index = self._pick_index(before_last=1)
        end = min(index + self.random.randrange(1, _LARGEST_WINDOW), self.size - 1)
        forged_id = await self._copy_entry(self.entry_ids[index])
        await self._execute("delete from deputize.log_leaves where tenant = $1 and leaf_index = $2", end)
        await self._delete_entries([self.entry_ids[end]])
        await self._move_leaves(index, end, 1)
        await self._add_leaf(index, forged_id)
        return self._enclose(index)

    async def swap_entries(self) -> FaultPlace:
        """Swap the contents of two entries, and leave their leaves."""
        first, second = self._pick_two()
        await self._execute(
            """update deputize.audit_entries a set entry = b.entry from deputize.audit_entries b
               where a.tenant = $1 and b.tenant = $1
                 and (a.id = $2 and b.id = $3 or a.id = $3 and b.id = $2)""",
            self.entry_ids[first],
            self.entry_ids[second],
        )
        return FaultPlace(first=first, last=first)

    async def swap_leaves(self) -> FaultPlace:
        """Swap two entries with their leaves."""
        first, second = self._pick_two()
        move = "update deputize.log_leaves set leaf_index = $3 where tenant = $1 and leaf_index = $2"
        for old_index, new_index in ((first, _FREE_INDEX), (second, first), (_FREE_INDEX, second)):
            await self._execute(move, old_index, new_index)
        return self._enclose(first)

    # ---- Parts ----

    def _pick_index(self, *, before_last: int = 0) -> int:
        return self.random.randrange(self.size - before_last)

    def _pick_two(self) -> tuple[int, int]:
        first, second = sorted(self.random.sample(range(self.size), 2))
        return first, second

    def _enclose(self, index: int) -> FaultPlace:
        """Say what the two checkpoints around an entry enclose."""
        first, end = self._find_checkpoints(index)
        return FaultPlace(first=first, last=end - 1)

    def _enclose_tile(self, index: int) -> FaultPlace:
        """Say where a tile without all its hashes is noticed: at its first leaf, or where entries are missing."""
        tile_first = index // TILE_WIDTH * TILE_WIDTH
        return FaultPlace(
            first=tile_first,
            last=index,
            enclosed_first=self._find_checkpoints(tile_first)[0],
            enclosed_last=self._find_checkpoints(index)[1] - 1,
        )

    def _find_checkpoints(self, index: int) -> tuple[int, int]:
        at = bisect.bisect_right(self.signed_sizes, index)
        return (self.signed_sizes[at - 1] if at else 0), self.signed_sizes[at]

    async def _change_letter(self, index: int) -> None:
        """Change one letter or digit of an entry, so that the database can still index it as JSON."""
        query = "select entry from deputize.audit_entries where tenant = $1 and id = $2"
        entry = bytearray(await self.connection.fetchval(query, self.tenant, self.entry_ids[index]))
        while True:
            at = self.random.randrange(len(entry))
            other = self.random.choice(_LETTERS)
            changed = bytes(entry[:at] + bytes([other]) + entry[at + 1 :])
            if entry[at] in _LETTERS and other != entry[at] and _is_json(changed):
                break
        await self._execute(
            "update deputize.audit_entries set entry = $3 where tenant = $1 and id = $2", self.entry_ids[index], changed
        )

    async def _copy_entry(self, entry_id: UUID) -> UUID:
        forged_id = UUID(int=entry_id.int ^ 1)
        await self._execute(
            """insert into deputize.audit_entries (tenant, id, call_id, entry, salt)
               select tenant, $3, call_id, entry || ' ', salt from deputize.audit_entries
               where tenant = $1 and id = $2""",
            entry_id,
            forged_id,
        )
        return forged_id

    async def _add_leaf(self, index: int, entry_id: UUID) -> None:
        await self._execute(
            r"""insert into deputize.log_leaves (tenant, leaf_index, entry_id, hash)
                select tenant, $2, id, sha256('\x00'::bytea || entry) from deputize.audit_entries
                where tenant = $1 and id = $3""",
            index,
            entry_id,
        )

    async def _move_leaves(self, begin: int, end: int, distance: int) -> None:
        """Move leaves in two steps, because no two may have one index even for a moment."""
        move = "update deputize.log_leaves set leaf_index = leaf_index + $4 where tenant = $1 and leaf_index >= $2"
        await self._execute(f"{move} and leaf_index < $3", begin, end, _FREE_INDEX)
        await self._execute(
            f"{move} and leaf_index < $3", begin + _FREE_INDEX, end + _FREE_INDEX, distance - _FREE_INDEX
        )

    async def _delete_entries(self, entry_ids: Sequence[UUID]) -> None:
        await self._execute("delete from deputize.audit_entries where tenant = $1 and id = any($2::uuid[])", entry_ids)

    async def _delete_tail(self, size: int) -> None:
        await self._delete_entries(self.entry_ids[size:])
        await self._execute("delete from deputize.log_leaves where tenant = $1 and leaf_index >= $2", size)

    async def _execute(self, statement: str, *values: object) -> None:
        result = await self.connection.execute(statement, self.tenant, *values)
        if result.endswith(" 0") and "log_nodes" not in statement:
            raise RuntimeError(f"nothing was changed: {statement} {values!r:.200}")

    async def _fetch(self, query: str) -> list[asyncpg.Record]:
        return list(await self.connection.fetch(query, self.tenant))


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


Change = Callable[[LogEditor], Awaitable[FaultPlace | str]]
CHANGES: tuple[Change, ...] = (
    LogEditor.change_entry,
    LogEditor.change_entry_and_leaf,
    LogEditor.change_leaf,
    LogEditor.change_node,
    LogEditor.change_checkpoint,
    LogEditor.delete_entry,
    LogEditor.delete_entry_and_leaf,
    LogEditor.delete_and_close_gap,
    LogEditor.truncate_log,
    LogEditor.roll_back,
    LogEditor.insert_beside_log,
    LogEditor.insert_and_push,
    LogEditor.swap_entries,
    LogEditor.swap_leaves,
)
ROLLBACK = LogEditor.roll_back
