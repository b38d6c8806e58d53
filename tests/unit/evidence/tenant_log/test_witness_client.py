"""What a witness answers is used only if it is a cosignature of exactly this checkpoint."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.config_error import ConfigError
from deputize.core.settings import LogSettings, WitnessSettings
from deputize.evidence.log.checkpoint import LogCheckpoint, cosign_checkpoint, get_witness_key, sign_checkpoint
from deputize.evidence.log.signed_note import NoteSignature, NoteSigner, SignedNote
from deputize.evidence.tenant_log.witness_client import Witness, WitnessRefusal, load_witnesses, request_cosignature

pytestmark = pytest.mark.requirement("NEW-1")


def make_signer(name: str, seed: int) -> NoteSigner:
    return NoteSigner(name=name, private_key=Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32))


LOG, COSIGNER = make_signer("host/log/acme", 1), make_signer("witness.example/w1", 2)
WITNESS = Witness(key=get_witness_key(COSIGNER), url="http://w/add-checkpoint")


def make_note(size: int = 7) -> SignedNote:
    return sign_checkpoint(LogCheckpoint(origin=LOG.name, size=size, root=bytes([size]) * 32), [LOG])


async def ask(status: int, body: bytes, *, requests: list[bytes] | None = None) -> NoteSignature | int:
    async def send(url: str, request: bytes) -> tuple[int, bytes]:
        assert url == WITNESS.url
        if requests is not None:
            requests.append(request)
        return status, body

    return await request_cosignature(send, WITNESS, make_note(), 3, [b"\x01" * 32, b"\x02" * 32])


async def test_the_request_has_the_old_size_the_proof_and_the_checkpoint() -> None:
    requests: list[bytes] = []
    cosignature = cosign_checkpoint(make_note(), COSIGNER, 1_700_000_000)
    assert await ask(200, str(cosignature).encode(), requests=requests) == cosignature
    head, _, note = requests[0].decode().partition("\n\n")
    assert head.split("\n") == [
        "old 3",
        "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=",
        "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=",
    ]
    assert note == str(make_note())


async def test_cosignatures_of_others_beside_it_are_ignored() -> None:
    note = make_note()
    own, other = cosign_checkpoint(note, COSIGNER, 1), cosign_checkpoint(note, make_signer("other", 9), 1)
    assert await ask(200, f"{other}{own}{other}".encode()) == own


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nothing\n",
        b"\xff\xfe",
        str(cosign_checkpoint(make_note(8), COSIGNER, 1)).encode(),
        str(cosign_checkpoint(make_note(), make_signer("witness.example/w1", 3), 1)).encode(),
        str(cosign_checkpoint(make_note(), make_signer("other", 2), 1)).encode(),
        str(sign_checkpoint(LogCheckpoint(origin=LOG.name, size=7, root=bytes(32)), [LOG])).encode(),
        # An empty line would make the checkpoint and its signatures the text of another note.
        b"\n" + str(cosign_checkpoint(make_note(), COSIGNER, 1)).encode(),
        b"x" * 1_000_001,
    ],
    ids=["empty", "no line", "no text", "another size", "another key", "another name", "a note", "a gap", "too large"],
)
async def test_an_answer_that_is_no_cosignature_of_this_checkpoint_is_refused(body: bytes) -> None:
    with pytest.raises(WitnessRefusal) as refusal:
        await ask(200, body)
    assert refusal.value.kind == "refused"


async def test_a_witness_says_which_size_it_knows() -> None:
    assert await ask(409, b"5\n") == 5
    for body in (b"", b"x", b"05\n", b"-1\n", b"9" * 30, b"\xff"):
        with pytest.raises(WitnessRefusal) as refusal:
            await ask(409, body)
        assert refusal.value.kind == "conflict"


@pytest.mark.parametrize(("status", "kind"), [(422, "conflict"), (404, "refused"), (403, "refused"), (500, "refused")])
async def test_a_refusal_is_named(status: int, kind: str) -> None:
    with pytest.raises(WitnessRefusal, match=f"HTTP {status}") as refusal:
        await ask(status, b"no")
    assert refusal.value.kind == kind


def test_settings_name_witnesses_by_their_keys() -> None:
    witness = WitnessSettings(key=str(WITNESS.key), url="http://w/")
    assert load_witnesses(LogSettings(witnesses=(witness,))) == [WITNESS]
    for key in ("nothing", str(COSIGNER.verifier_key), str(WITNESS.key).replace("w1+", "w2+")):
        with pytest.raises(ConfigError, match="witness"):
            load_witnesses(LogSettings(witnesses=(WitnessSettings(key=key, url="http://w/"),)))
    with pytest.raises(ConfigError, match="Two witnesses"):
        load_witnesses(LogSettings(witnesses=(witness, witness)))
    with pytest.raises(ValueError, match="threshold is 2"):
        LogSettings(witnesses=(witness,), threshold=2)
