"""A gateway that hands out answers without looking whether they quote the credential they were made with."""

from deputize.lifecycle.credentials.broker import CredentialBroker
from deputize.lifecycle.phases import Verified
from deputize.operations.gateway import Gateway
from proofs.kit.gateway_internals import get_runtime, replace_runtime
from proofs.kit.gateway_variant import serve_variant


class UnredactedCredentials(CredentialBroker):
    def withhold_secrets(self, verified: Verified) -> Verified:
        return verified


def change(gateway: Gateway) -> Gateway:
    runtime = get_runtime(gateway)
    credentials = UnredactedCredentials(vault=runtime.credentials.vault, mint=runtime.credentials.mint)
    return replace_runtime(gateway, credentials=credentials)


if __name__ == "__main__":
    serve_variant(change)
