"""A gateway that names the end of a program by its exit code, as shells and container engines do."""

import signal
from dataclasses import replace
from typing import Any

from deputize.operations.gateway import Gateway
from deputize.sandboxes.client import RunningSandbox, SandboxResult
from deputize.sandboxes.port import Ending
from proofs.kit.gateway_variant import serve_variant

_KILLED = 128 + signal.SIGKILL
_TIMED_OUT = 124


def change(gateway: Gateway) -> Gateway:
    finish = RunningSandbox.finish

    async def finish_by_code(self: RunningSandbox, *positional: Any, **keywords: Any) -> SandboxResult:
        result = await finish(self, *positional, **keywords)
        # Whom the supervisor kills ends as any other that is killed.
        code = _KILLED if result.end.exit_code is None else result.end.exit_code
        ending = Ending.CRASH if code > 128 else Ending.EXIT
        ending = {_KILLED: Ending.MEMORY, _TIMED_OUT: Ending.DEADLINE}.get(code, ending)
        return replace(result, end=replace(result.end, ending=ending, exit_code=code))

    RunningSandbox.finish = finish_by_code  # type: ignore[method-assign]
    return gateway


if __name__ == "__main__":
    serve_variant(change)
