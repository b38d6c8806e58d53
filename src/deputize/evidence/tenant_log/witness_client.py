"""Ask witnesses to cosign checkpoints, as C2SP's tlog-witness defines it, and verify what they answer."""

import base64
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from deputize.core.config_error import ConfigError
from deputize.core.settings.log import LogSettings
from deputize.evidence.log.checkpoint import parse_decimal, verify_cosignature
from deputize.evidence.log.signed_note import (
    COSIGNATURE_TYPE,
    InvalidNote,
    NoteSignature,
    SignedNote,
    VerifierKey,
    parse_note,
)

# Posts a body to a URL and returns status and body of the answer.
Send = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]
RefusalKind = Literal["unreachable", "refused", "conflict"]


class WitnessRefusal(Exception):
    """A witness that did not cosign; a conflict means that it knows another history of the log."""

    def __init__(self, kind: RefusalKind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Witness:
    """A witness by its key, and where it takes checkpoints."""

    key: VerifierKey
    url: str

    @property
    def name(self) -> str:
        """The name under which it cosigns."""
        return self.key.name


def load_witnesses(settings: LogSettings) -> list[Witness]:
    """Parse the witnesses of the settings."""
    witnesses = []
    for each in settings.witnesses:
        try:
            key = VerifierKey.parse(each.key)
        except InvalidNote as error:
            raise ConfigError(f"The key of the witness at {each.url} under [[log.witnesses]]: {error}.") from error
        if key.signature_type != COSIGNATURE_TYPE:
            raise ConfigError(
                f"The key of the witness {key.name} under [[log.witnesses]] is for notes, not for cosignatures: ask "
                "its operator for the key of type 4 (cosignature/v1)."
            )
        witnesses.append(Witness(key=key, url=each.url.rstrip("/") + "/add-checkpoint"))
    names = [each.name for each in witnesses]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise ConfigError(f"Two witnesses under [[log.witnesses]] have the name {duplicate}: remove one of them.")
    return witnesses


async def request_cosignature(
    send: Send, witness: Witness, note: SignedNote, old_size: int, proof: Sequence[bytes]
) -> NoteSignature | int:
    """Return the cosignature of a checkpoint, or the size that the witness knows if that is not `old_size`."""
    status, body = await send(witness.url, _render_request(note, old_size, proof))
    if status == 200:
        return _read_cosignature(witness, note, body)
    if status == 409:
        return _read_size(body)
    raise WitnessRefusal("conflict" if status == 422 else "refused", f"it answered with HTTP {status}")


def _render_request(note: SignedNote, old_size: int, proof: Sequence[bytes]) -> bytes:
    lines = [f"old {old_size}", *(base64.b64encode(each).decode() for each in proof)]
    return "\n".join([*lines, "", str(note)]).encode()


def _read_cosignature(witness: Witness, note: SignedNote, body: bytes) -> NoteSignature:
    try:
        cosigned_note = parse_note(str(note).encode() + body)
        # A body with an empty line would move the end of the text.
        if cosigned_note.text != note.text:
            raise InvalidNote("the answer is not a list of signature lines")
        if verify_cosignature(cosigned_note, witness.key) is None:
            raise InvalidNote("the answer has no cosignature of its key")
    except InvalidNote as error:
        raise WitnessRefusal("refused", str(error)) from error
    return cosigned_note.list_signatures(witness.key)[-1]


def _read_size(body: bytes) -> int:
    try:
        return parse_decimal(body.decode("ascii").removesuffix("\n"))
    except (InvalidNote, UnicodeDecodeError, IndexError) as error:
        raise WitnessRefusal("conflict", "it knows another checkpoint, and did not say of which size") from error
