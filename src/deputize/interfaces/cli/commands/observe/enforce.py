"""Define `deputize observe enforce`: replace the policy that allows everything by one that decides."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from deputize.interfaces.cli.client.confirmation import Code, OperatorRequests
from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.render.output import EXIT_PENDING, Json, exit_with_error, printer


def enforce(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The policy, as observe report --write-policy wrote it.")
    ],
    code: Code = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Activate a policy in place of the one that allows every call, and move it to policies/. Needs an operator.

    From then on the gateway asks and denies. The policy that allowed everything is kept as policies/observe.cedar.off.
    """
    from deputize.interfaces.cli.local.observed_project import (
        OBSERVING_POLICY,
        read_new_policy,
        replace_observing_policy,
    )
    from deputize.interfaces.cli.local.offline_policy import read_policy_payload

    source = file.absolute()
    gateway = find_gateway(url, token)
    target, text = read_new_policy(source)
    # As the next start reads them: the project may have others beside the one that allows everything.
    replaced_paths = {str(OBSERVING_POLICY), str(target)}
    files = [each for each in read_policy_payload(()) if each["path"] not in replaced_paths]
    files = sorted([*files, {"path": str(target), "text": text}], key=lambda file: Path(file["path"]))
    answer = OperatorRequests(gateway, code).send("PUT", "/v1/policies", {"files": files})
    if answer["state"] == "proposed":
        exit_with_error(
            f"The settings ask for a second operator, who confirms it: deputize policy confirm {answer['digest']}. "
            "Then run this command again.",
            EXIT_PENDING,
            digest=answer["digest"],
        )
    replace_observing_policy(source, target, text)
    if json:
        printer.json({**answer, "file": str(target)})
        return
    for each in answer["warnings"]:
        printer.line(f"{each['file']}:{each['line']}: warning: {each['message']}")
    printer.success(f"Enforcing since policy epoch {answer['epoch']}: {target}")
    printer.line("  What it asks about: deputize approvals list")
    printer.line(
        f"  Observe again: mv {shlex.quote(str(target))} . && mv {OBSERVING_POLICY}.off {OBSERVING_POLICY}, "
        "then deputize observe start"
    )
