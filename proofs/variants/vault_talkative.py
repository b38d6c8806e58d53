"""A gateway that hands out answers without looking whether they quote the credential they were made with."""

from dataclasses import replace

from deputize.lifecycle.credentials import Credentials
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.phases import Verified
from deputize.lifecycle.run import Lifecycle
from proofs.kit.variant import serve_changed


class Talkative(Credentials):
    def unquoted(self, verified: Verified) -> Verified:
        return verified


def change(gateway: Gateway) -> Gateway:
    rooms = gateway.lifecycle.rooms
    talkative = Talkative(vault=rooms.credentials.vault, mint=rooms.credentials.mint)
    return replace(gateway, lifecycle=Lifecycle(replace(rooms, credentials=talkative)))


if __name__ == "__main__":
    serve_changed(change)
