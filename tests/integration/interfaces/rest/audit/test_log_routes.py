"""The log of a tenant over HTTP: whole and verifiable for its administrators, and not there for others."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import httpx2
import pytest
import pytest_asyncio

from deputize.evidence.log.checkpoint import LogCheckpoint, open_checkpoint
from deputize.evidence.log.merkle_tree import HASH_SIZE, hash_leaf, hash_range, plan_consistency, verify_consistency
from deputize.evidence.log.signed_note import VerifierKey, parse_note
from deputize.evidence.log.tiles import Tile, TileHashes, decode_bundle, list_new_tiles
from tests.integration.conftest import ADMIN, SCOPES, HttpGateway
from tests.support.gateway_internals import get_runtime

pytestmark = pytest.mark.requirement("GOV-5")
IMMUTABLE = "private, max-age=31536000, immutable"
# More than one tile of leaves.
ENTRIES = 300


def _admin(gateway: HttpGateway) -> str:
    return gateway.token("log-reader", scopes=(*SCOPES, ADMIN))


async def _get(gateway: HttpGateway, path: str) -> httpx2.Response:
    answer = await gateway.get(f"/log/dev/{path}", token=_admin(gateway))
    assert answer.status_code == 200, answer.text
    return answer


async def _load_checkpoint(gateway: HttpGateway) -> LogCheckpoint:
    keys = (await _get(gateway, "keys")).json()["keys"]
    answer = await _get(gateway, "checkpoint")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    return open_checkpoint(parse_note(answer.content), [VerifierKey.parse(each["verifier_key"]) for each in keys])


async def _load_tiles(gateway: HttpGateway, size: int) -> dict[Tile, bytes]:
    contents: dict[Tile, bytes] = {}
    for tile in list_new_tiles(0, size):
        answer = await _get(gateway, tile.path)
        assert answer.headers["cache-control"] == IMMUTABLE
        assert answer.headers["content-type"] == "application/octet-stream"
        contents[tile] = answer.content
    return contents


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def checkpoint(gateway: HttpGateway) -> LogCheckpoint:
    """A signed checkpoint over more than one tile of leaves."""
    for _ in range(ENTRIES // 20):
        answers = await asyncio.gather(*(gateway.call("shop.get_user", {"id": 1}) for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
    async with asyncio.timeout(90):
        while True:
            answer = await gateway.get("/log/dev/checkpoint", token=_admin(gateway))
            if answer.status_code == 200:
                checkpoint = await _load_checkpoint(gateway)
                if checkpoint.size >= ENTRIES:
                    return checkpoint
            await asyncio.sleep(0.05)


@pytest.fixture
async def owner(gateway: HttpGateway) -> AsyncIterator[asyncpg.Connection]:
    assert gateway.in_process is not None
    connection = await asyncpg.connect(get_runtime(gateway.in_process).store.direct_dsn)
    yield connection
    await connection.close()


async def test_a_stranger_can_verify_every_entry_and_that_the_log_only_grew(
    gateway: HttpGateway, checkpoint: LogCheckpoint
) -> None:
    contents = await _load_tiles(gateway, checkpoint.size)
    hashes = TileHashes({(tile.level, tile.index): each for tile, each in contents.items() if tile.level is not None})
    assert hash_range((0, checkpoint.size), hashes.read_hash) == checkpoint.root

    leaves = [hash_leaf(entry) for tile in contents if tile.level is None for entry in decode_bundle(contents[tile])]
    stored = b"".join(contents[tile] for tile in contents if tile.level == 0)
    assert len(leaves) == checkpoint.size
    assert b"".join(leaves) == stored

    old_size = checkpoint.size - 40
    old_root = hash_range((0, old_size), hashes.read_hash)
    proof = [hash_range(leaves, hashes.read_hash) for leaves in plan_consistency(old_size, checkpoint.size)]
    verify_consistency(old_size, old_root, checkpoint.size, checkpoint.root, proof)


async def test_a_narrow_tile_is_the_beginning_of_the_wider_one(gateway: HttpGateway, checkpoint: LogCheckpoint) -> None:
    full = (await _get(gateway, "tile/0/000")).content
    assert len(full) == 256 * HASH_SIZE
    for width in (1, 17, 255):
        assert (await _get(gateway, f"tile/0/000.p/{width}")).content == full[: width * HASH_SIZE]
        entries = decode_bundle((await _get(gateway, f"tile/entries/000.p/{width}")).content)
        assert [hash_leaf(entry) for entry in entries] == [full[n * 32 : n * 32 + 32] for n in range(width)]


@pytest.mark.parametrize(
    "path",
    [
        "tile/0/999",
        "tile/entries/999",
        "tile/5/000",
        "tile/63/x999/x999/x999/x999/x999/x999/999",
        "tile/0/x999/x999/x999/x999/x999/x999/999",
        "tile/entries/x999/x999/x999/x999/x999/x999/999",
        "tile/0/000.p/256",
        "tile/0/000.p/0",
        "tile/0/0",
        "tile/64/000",
        "tile/-1/000",
        "tile/data/000",
        "tile/0/x000/000",
        "tile/0/000/",
        "tile/0/..%2f0%2f000",
        "tile/" + "x000/" * 500,
        "tile/\u0660/000",
    ],
)
async def test_a_path_that_no_tile_has_is_not_found(path: str, gateway: HttpGateway, checkpoint: LogCheckpoint) -> None:
    answer = await gateway.get(f"/log/dev/{path}", token=_admin(gateway))
    assert (answer.status_code, answer.json()["error"]["slug"]) in ((404, "log-not-found"), (404, "no-such-route"))
    assert "cache-control" not in answer.headers or "immutable" not in answer.headers["cache-control"]


@pytest.mark.parametrize("path", ["checkpoint", "keys", "tile/0/000", "tile/entries/000"])
async def test_only_administrators_of_the_tenant_see_its_log(
    path: str, gateway: HttpGateway, checkpoint: LogCheckpoint
) -> None:
    answer = await gateway.get(f"/log/dev/{path}")
    assert (answer.status_code, answer.json()["error"]["slug"]) == (403, "scope-missing")
    token = gateway.other_token("root", scopes=(*SCOPES, ADMIN))
    theirs, nobodys = [await gateway.get(f"/log/{tenant}/{path}", token=token) for tenant in ("dev", "no-tenant")]
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.json()["detail"] == nobodys.json()["detail"]
    assert (await gateway.http.get(f"/log/dev/{path}")).status_code == 401


async def test_who_reads_entries_is_recorded_once_in_an_hour(gateway: HttpGateway, checkpoint: LogCheckpoint) -> None:
    token = gateway.token("bundle-reader", scopes=(*SCOPES, ADMIN))
    for path in ("tile/0/000", "tile/entries/000", "tile/entries/000.p/3", "tile/entries/000"):
        assert (await gateway.get(f"/log/dev/{path}", token=token)).status_code == 200
    found = await gateway.get("/v1/audit", token=_admin(gateway), caller="bundle-reader", kind="command")
    assert [each["entry"]["command"] for each in found.json()["entries"]] == ["read_log"]


async def test_a_changed_and_a_missing_entry_are_visible_and_not_cached(
    gateway: HttpGateway, checkpoint: LogCheckpoint, owner: asyncpg.Connection
) -> None:
    rows = await owner.fetch(
        "select entry_id from deputize.log_leaves where tenant = 'dev' and leaf_index in (3, 5) order by leaf_index"
    )
    changed_id, missing_id = rows[0]["entry_id"], rows[1]["entry_id"]
    originals = await owner.fetch("select * from deputize.audit_entries where tenant = 'dev' and id = $1", missing_id)
    original = await owner.fetchval("select entry from deputize.audit_entries where id = $1", changed_id)
    await owner.execute("update deputize.audit_entries set entry = entry || ' ' where id = $1", changed_id)
    await owner.execute("delete from deputize.audit_entries where id = $1", missing_id)
    try:
        answer = await _get(gateway, "tile/entries/000.p/8")
    finally:
        await owner.execute("update deputize.audit_entries set entry = $2 where id = $1", changed_id, original)
        columns = list(originals[0].keys())
        await owner.execute(
            f"insert into deputize.audit_entries ({', '.join(columns)}) "
            f"values ({', '.join(f'${n + 1}' for n in range(len(columns)))})",
            *originals[0].values(),
        )
    assert answer.headers["cache-control"] == "no-store"
    leaves = (await _get(gateway, "tile/0/000.p/8")).content
    wrong = [
        index
        for index, entry in enumerate(decode_bundle(answer.content))
        if hash_leaf(entry) != leaves[index * HASH_SIZE : (index + 1) * HASH_SIZE]
    ]
    assert wrong == [3, 5]
    assert (await _get(gateway, "tile/entries/000.p/8")).headers["cache-control"] == IMMUTABLE
