"""Sign and verify notes, as C2SP's signed-note defines them: a text, an empty line, and one line per signature."""

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ED25519_TYPE: Final = 0x01
COSIGNATURE_TYPE: Final = 0x04
MAX_NOTE_SIZE: Final = 1_000_000
_MAX_SIGNATURES: Final = 100
_MARK: Final = "— "
_KEY_SIZE: Final = 32


class InvalidNote(ValueError):
    """A note, a signature or a key that cannot be read, or that is not signed by a trusted key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifierKey:
    """The public key of a signer, with its name; `NAME+ID+KEY` in text."""

    name: str
    signature_type: int
    public_key: bytes

    @property
    def key_id(self) -> bytes:
        """The four bytes that go before each signature."""
        return sha256(self.name.encode() + b"\n" + bytes([self.signature_type]) + self.public_key).digest()[:4]

    def __str__(self) -> str:
        key = base64.b64encode(bytes([self.signature_type]) + self.public_key).decode()
        return f"{self.name}+{self.key_id.hex()}+{key}"

    @classmethod
    def parse(cls, text: str) -> "VerifierKey":
        """Parse `NAME+ID+KEY`."""
        name, _, rest = text.partition("+")
        key_id, _, key_text = rest.partition("+")
        material = decode_base64(key_text)
        if len(material) != 1 + _KEY_SIZE or material[0] not in (ED25519_TYPE, COSIGNATURE_TYPE):
            raise InvalidNote("the key is not an Ed25519 key in the form NAME+ID+KEY")
        check_key_name(name)
        key = cls(name=name, signature_type=material[0], public_key=material[1:])
        if key.key_id.hex() != key_id:
            raise InvalidNote(f"the key of {name} does not have the id {key_id[:8]}: it was copied wrongly or changed")
        return key

    def is_valid(self, message: bytes, signature: bytes) -> bool:
        """Tell whether this key made the Ed25519 signature of the message."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(signature, message)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteSigner:
    """A private key with the name under which it signs."""

    name: str
    private_key: Ed25519PrivateKey

    @property
    def verifier_key(self) -> VerifierKey:
        """The public half."""
        public_key = self.private_key.public_key().public_bytes_raw()
        return VerifierKey(name=self.name, signature_type=ED25519_TYPE, public_key=public_key)


@dataclass(frozen=True, kw_only=True, slots=True)
class NoteSignature:
    """One signature line."""

    name: str
    key_id: bytes
    signature: bytes

    def __str__(self) -> str:
        return f"{_MARK}{self.name} {base64.b64encode(self.key_id + self.signature).decode()}\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedNote:
    """A text that ends with a newline, and its signatures."""

    text: str
    signatures: Sequence[NoteSignature]

    def __str__(self) -> str:
        return f"{self.text}\n{''.join(str(signature) for signature in self.signatures)}"

    def list_signatures(self, key: VerifierKey) -> list[NoteSignature]:
        """List the signatures that name this key."""
        return [each for each in self.signatures if each.name == key.name and each.key_id == key.key_id]


def sign_note(text: str, signers: Iterable[NoteSigner]) -> SignedNote:
    """Sign a text with every signer."""
    check_note_text(text)
    signatures = [
        NoteSignature(
            name=signer.name,
            key_id=signer.verifier_key.key_id,
            signature=signer.private_key.sign(text.encode()),
        )
        for signer in signers
    ]
    return SignedNote(text=text, signatures=signatures)


def parse_note(content: bytes) -> SignedNote:
    """Parse a note; nothing in it may be believed before `verify_note`."""
    if len(content) > MAX_NOTE_SIZE:
        raise InvalidNote(f"the note has more than {MAX_NOTE_SIZE:,} bytes")
    try:
        content_text = content.decode()
    except UnicodeDecodeError as error:
        raise InvalidNote("the note is not UTF-8") from error
    text, separator, rest = content_text.rpartition("\n\n")
    text += "\n"
    if not separator or not rest.endswith("\n"):
        raise InvalidNote("the note has no signature lines after an empty line")
    check_note_text(text)
    lines = rest.split("\n")[:-1]
    if len(lines) > _MAX_SIGNATURES:
        raise InvalidNote(f"the note has more than {_MAX_SIGNATURES} signatures")
    return SignedNote(text=text, signatures=[_parse_signature(line) for line in lines])


def verify_note(note: SignedNote, keys: Iterable[VerifierKey]) -> VerifierKey:
    """Return the first key that signed the note; raise if none did, or if a signature in its name is wrong."""
    for key in keys:
        signatures = note.list_signatures(key)
        if not signatures:
            continue
        if not all(key.is_valid(note.text.encode(), each.signature) for each in signatures):
            raise InvalidNote(f"the signature of {key.name} does not fit the text: the note was changed")
        return key
    raise InvalidNote("the note is not signed by a key that you trust")


def check_key_name(name: str) -> None:
    """Raise unless the name can stand in a signature line."""
    if not name or "+" in name or any(letter.isspace() or not letter.isprintable() for letter in name):
        raise InvalidNote("a key's name has at least one letter, and no space or plus sign")


def check_note_text(text: str) -> None:
    """Raise unless the text can be signed: it ends with a newline and has no other control characters."""
    if not text.endswith("\n") or any(letter < " " and letter != "\n" for letter in text):
        raise InvalidNote("a note's text ends with a newline and has no other control characters")


def decode_base64(text: str) -> bytes:
    """Decode standard base64; only the one way to write it is accepted."""
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidNote("a part of the note is not base64") from error
    if base64.b64encode(content).decode() != text:
        raise InvalidNote("a part of the note is not base64 in its normal form")
    return content


def _parse_signature(line: str) -> NoteSignature:
    name, _, signature_text = line.removeprefix(_MARK).partition(" ")
    if not line.startswith(_MARK):
        raise InvalidNote("a signature line does not begin with a dash and a space")
    check_key_name(name)
    content = decode_base64(signature_text)
    if len(content) <= 4:
        raise InvalidNote(f"the signature of {name} is cut off")
    return NoteSignature(name=name, key_id=content[:4], signature=content[4:])
