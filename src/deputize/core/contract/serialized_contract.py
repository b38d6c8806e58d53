"""Hold a contract together with its canonical bytes and digest, which take time to compute."""

from dataclasses import dataclass
from typing import Self

from deputize.core.canonical import canonicalize
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
        return cls(contract=contract, digest=contract.digest, raw=canonicalize(contract.model_dump(mode="json")))

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Read a contract that this release serialized."""
        contract = Contract.model_validate_json(raw)
        return cls(contract=contract, digest=contract.digest, raw=raw)
