"""Receipts of calls: only for those who may see the call, valid without the gateway, and never of a changed entry."""

import asyncpg
import orjson
import pytest

from deputize.evidence.log.checkpoint import open_checkpoint
from deputize.evidence.log.inclusion_receipt import InclusionReceipt
from deputize.evidence.log.merkle_tree import InvalidProof
from deputize.evidence.log.receipt_check import check_receipt
from deputize.evidence.log.signed_note import InvalidNote, VerifierKey
from deputize.evidence.tenant_log.log_keys import load_log_keys, rotate_log_key
from tests.integration.conftest import ADMIN, HttpGateway
from tests.support.gateway_internals import get_runtime

pytestmark = pytest.mark.requirement("NEW-1")


async def _make_call(gateway: HttpGateway, key: str) -> str:
    answer = await gateway.call("shop.rename_user", {"id": 7, "name": "Ana"}, key=key)
    assert answer.status_code == 200, answer.text
    call_id: str = answer.json()["call_id"]
    return call_id


async def test_a_receipt_proves_the_outcome_without_the_gateway(gateway: HttpGateway) -> None:
    call_id = await _make_call(gateway, "receipt-1")
    answer = await gateway.load_receipt(call_id, gateway.token())
    keys = [VerifierKey.parse(each) for each in answer["verifier_keys"]]
    proven = check_receipt(answer["receipt"].encode(), keys)
    assert proven.entry["id"] == answer["entry_id"]
    assert (proven.entry["call"], proven.entry["tenant"]) == (call_id, "dev")
    assert (proven.entry["kind"], proven.entry["outcome"]) == ("outcome", "succeeded")
    assert proven.log == keys[0].name
    assert (await gateway.load_receipt(call_id, gateway.token("root", scopes=(ADMIN,))))["entry_id"] == answer[
        "entry_id"
    ]

    receipt = InclusionReceipt.parse(answer["receipt"].encode())
    changed_entry = orjson.dumps({**orjson.loads(receipt.extra), "outcome": "failed"})
    changed_receipt = InclusionReceipt(index=receipt.index, proof=receipt.proof, note=receipt.note, extra=changed_entry)
    with pytest.raises(InvalidProof):
        check_receipt(changed_receipt.render().encode(), keys)
    other_key = VerifierKey(name=keys[0].name, signature_type=1, public_key=bytes(32))
    with pytest.raises(InvalidNote):
        check_receipt(answer["receipt"].encode(), [other_key])


async def test_nobody_else_gets_a_receipt(gateway: HttpGateway) -> None:
    call_id = await _make_call(gateway, "receipt-2")
    await gateway.load_receipt(call_id, gateway.token())
    for token in (gateway.token("eve"), gateway.other_token(), gateway.other_token("root", scopes=(ADMIN,))):
        answer = await gateway.get(f"/v1/calls/{call_id}/receipt", token=token)
        assert (answer.status_code, answer.json()["error"]["slug"]) == (404, "call-not-found")


async def test_an_entry_that_was_changed_in_the_database_has_no_receipt(gateway: HttpGateway) -> None:
    call_id = await _make_call(gateway, "receipt-3")
    answer = await gateway.load_receipt(call_id, gateway.token())
    assert gateway.in_process is not None
    owner = await asyncpg.connect(get_runtime(gateway.in_process).store.direct_dsn)
    try:
        await owner.execute(
            """update deputize.audit_entries
               set entry = convert_to(replace(convert_from(entry, 'UTF8'), 'succeeded', 'failed'), 'UTF8')
               where tenant = 'dev' and id = $1""",
            answer["entry_id"],
        )
    finally:
        await owner.close()
    refusal = await gateway.get(f"/v1/calls/{call_id}/receipt")
    assert refusal.status_code == 500
    assert "not what its log signed" in refusal.json()["detail"]


async def test_receipts_verify_with_the_old_and_the_new_key_after_a_rotation(gateway: HttpGateway) -> None:
    before = await gateway.load_receipt(await _make_call(gateway, "receipt-4"), gateway.token())
    assert gateway.in_process is not None
    runtime = get_runtime(gateway.in_process)
    keys = await runtime.keys.get("dev")
    async with runtime.store.write_transaction() as connection:
        new_key = VerifierKey.parse(await rotate_log_key(connection, keys, runtime.clock))
        stored_keys = (await load_log_keys(connection, ["dev"]))["dev"]
    old_key = VerifierKey.parse(before["verifier_keys"][0])
    assert [each.verifier_key for each in stored_keys] == [new_key, old_key]
    assert (new_key.name, all(each.signs for each in stored_keys)) == (old_key.name, True)

    after = await gateway.load_receipt(await _make_call(gateway, "receipt-5"), gateway.token())
    assert after["verifier_keys"] == [str(new_key), str(old_key)]
    for key in (old_key, new_key):
        assert open_checkpoint(InclusionReceipt.parse(after["receipt"].encode()).note, [key]).origin == key.name
    check_receipt(before["receipt"].encode(), [old_key])
