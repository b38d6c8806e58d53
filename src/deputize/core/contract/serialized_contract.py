"""Hold a contract together with its canonical bytes and digest, which take time to compute."""

from dataclasses import dataclass
from typing import Self

from deputize.core.canonical import canonicalize, digest_canonical
from deputize.core.contract.contract import Contract


@dataclass(frozen=True, kw_only=True, slots=True)
class SerializedContract:
    """A contract with its digest and canonical bytes, which are computed before any lock is taken."""

    contract: Contract
    digest: str
    raw: bytes

    @classmethod
    def from_contract(cls, contract: Contract) -> Self:
        """Serialize a contract."""
        raw = canonicalize(contract.model_dump(mode="json"))
        return cls(contract=contract, digest=digest_canonical(raw), raw=raw)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Read a contract that this release serialized."""
        return cls(contract=Contract.model_validate_json(raw), digest=digest_canonical(raw), raw=raw)
