"""A gateway that reads the state of tools and compares it with nothing."""

from deputize.lifecycle import verify
from deputize.lifecycle.phases import Executed
from deputize.lifecycle.runtime import Runtime
from proofs.kit.gateway_variant import serve_variant


async def accept_change(_runtime: Runtime, _executed: Executed) -> None:
    """Accept whatever a call changed."""


def describe_nothing(_executed: Executed) -> tuple[str, ...]:
    return ()


if __name__ == "__main__":
    vars(verify).update(check_state_change=accept_change, describe_unchanged_state=describe_nothing)
    serve_variant(lambda gateway: gateway)
