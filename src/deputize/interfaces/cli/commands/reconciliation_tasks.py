"""Define `deputize tasks`: list, show and resolve calls whose outcome is unknown."""

from typing import Annotated, Any, Literal

import typer

from deputize.interfaces.cli.client.confirmation import Code, OperatorRequests
from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.render.output import Json, format_json, printer

group = typer.Typer(no_args_is_help=True, help="Resolve calls whose outcome is unknown.")

TaskId = Annotated[str, typer.Argument(metavar="ID", help="Id of the task, as shown by deputize tasks list.")]
TaskState = Literal["open", "resolved", "expired", "all"]
Outcome = Literal["happened", "did_not_happen"]


@group.command("list", epilog="Example: deputize tasks list --state all")
def list_tasks(
    state: Annotated[TaskState, typer.Option(help="Show only tasks in this state.")] = "open",
    limit: Annotated[int, typer.Option(min=1, max=200, help="Show at most this many, newest first.")] = 20,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Show only tasks older than this one.")] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """List reconciliation tasks: calls that may or may not have taken effect, until a person finds out."""
    answer = find_gateway(url, token).get("/v1/reconciliation-tasks", state=state, limit=limit, before=before)
    tasks: list[dict[str, Any]] = answer["tasks"]
    if json:
        printer.json(answer)
    elif not tasks:
        printer.line("No open reconciliation tasks." if state == "open" else "No matching reconciliation tasks.")
    else:
        rows = [
            (
                each["task_id"],
                each["state"],
                each["call"]["tool"]["name"],
                _format_time(each),
                each["question"]["why"],
            )
            for each in tasks
        ]
        printer.table(("task", "state", "tool", "since", "why"), rows)


@group.command(epilog="Example: deputize tasks show 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b")
def show(task_id: TaskId, url: Url = "", token: Token = "", json: Json = False) -> None:
    """Show a task: the question, the call it is about, and what is known of that call."""
    value = find_gateway(url, token).get(_build_task_path(task_id))
    if json:
        printer.json(value)
    else:
        printer.line(format_json(value))


@group.command(
    epilog="Example: deputize tasks resolve 01a1b2c3-d4e5-7f60-8a9b-0c1d2e3f4a5b happened --reason 'seen in the CRM'"
)
def resolve(
    task_id: TaskId,
    outcome: Annotated[Outcome, typer.Argument(help="What you found out: happened or did_not_happen.")],
    reason: Annotated[str, typer.Option(help="How you know. Recorded, and shown to the caller.")],
    code: Code = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Settle the call. If it did not happen, the caller may repeat it with its idempotency key. Needs an operator."""
    body = {"outcome": outcome, "reason": reason}
    requests = OperatorRequests(find_gateway(url, token), code)
    answer = requests.send("POST", f"{_build_task_path(task_id)}/resolve", body)
    if json:
        printer.json(answer)
    printer.success(f"Task resolved: call {answer['call']['call_id']} is now {answer['call']['state']}.")


def _build_task_path(task_id: str) -> str:
    from urllib.parse import quote

    return f"/v1/reconciliation-tasks/{quote(task_id, safe='')}"


def _format_time(task: dict[str, Any]) -> str:
    return str(task["opened_at"]).partition(".")[0].replace("T", " ").removesuffix("+00:00")
