"""Define `deputize receipt` and `deputize verify`: prove what was recorded of a call, without a gateway."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.receipts import load_receipt
from deputize.interfaces.cli.client.target import Token, Url, build_call_path, find_gateway
from deputize.interfaces.cli.render.output import EXIT_FAILED, CommandExit, Json, exit_with_error, printer


def receipt(
    call_id: Annotated[str, typer.Argument(metavar="CALL", help="Id of the call, as printed by deputize call.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it to this file.")
    ] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Get the receipt of a call: it proves offline what was recorded of the call."""
    answer = load_receipt(find_gateway(url, token), f"{build_call_path(call_id)}/receipt")
    if output is not None:
        try:
            output.write_text(answer["receipt"], encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{output} cannot be written ({error.strerror}): choose another --output.") from None
    if json:
        printer.json(answer)
        return
    if output is None:
        printer.line(answer["receipt"].rstrip("\n"))
        return
    printer.success(f"The receipt is in {output}. Verify it anywhere: deputize verify {output} --key KEY")
    printer.note(f"The gateway says that its key is {answer['verifier_keys'][0]}")
    printer.note("Compare it with what the operator tells you: deputize keys status shows it.")


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The receipt.")],
    key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="The key of the log, in the row log of deputize keys status, or a file with one per line.",
        ),
    ],
    witness: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="The key of a witness that must have cosigned, or a file; may be repeated."),
    ] = None,
    threshold: Annotated[
        int | None, typer.Option(min=1, help="How many of the witnesses must have cosigned: all, unless given.")
    ] = None,
    json: Json = False,
) -> None:
    """Verify a receipt without a gateway, and say what it proves. Exits with 1 if it is not valid."""
    from deputize.interfaces.cli.local.receipt_check import (
        InvalidNote,
        InvalidProof,
        check_receipt,
        describe_receipt,
        read_log_keys,
        read_receipt,
        read_witness_keys,
    )

    keys, witness_keys, content = read_log_keys(key), read_witness_keys(witness or []), read_receipt(file)
    if threshold is not None and threshold > len({each.name for each in witness_keys}):
        exit_with_error("--threshold is more than the number of witnesses: name them with --witness.")
    try:
        checked_receipt = check_receipt(content, keys, witness_keys, threshold=threshold)
    except (InvalidNote, InvalidProof) as error:
        if json:
            printer.json({"valid": False, "reason": str(error)})
        else:
            printer.line(f"NOT VALID: {error}. Do not rely on this receipt.")
        raise CommandExit(EXIT_FAILED) from None
    if json:
        printer.json({"valid": True, **asdict(checked_receipt)})
        return
    for line in describe_receipt(checked_receipt):
        printer.line(line)
