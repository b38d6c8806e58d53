"""Define `deputize tasks`: list, show and resolve what a person has to do."""

from typing import Annotated, Any, Literal

import typer

from deputize.interfaces.cli.client.confirmation import Code, OperatorRequests
from deputize.interfaces.cli.client.target import Token, Url, find_gateway
from deputize.interfaces.cli.render.output import Json, format_json, printer

group = typer.Typer(no_args_is_help=True, help="Resolve what needs a person, such as unknown outcomes.")

TaskId = Annotated[str, typer.Argument(metavar="ID", help="Id of the task, as shown by deputize tasks list.")]
TaskState = Literal["open", "resolved", "expired", "all"]
TaskKind = Literal["reconcile", "fallback", "compensate", "undo"]
Outcome = Literal["happened", "did_not_happen", "done", "dismissed"]


@group.command("list", epilog="Example: deputize tasks list --state all")
def list_tasks(
    state: Annotated[TaskState, typer.Option(help="Show only tasks in this state.")] = "open",
    kind: Annotated[TaskKind | None, typer.Option(help="Show only tasks of this kind.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Show at most this many, newest first.")] = 20,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Show only tasks older than this one.")] = None,
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """List human tasks: unknown outcomes, and what else waits until a person has done it."""
    answer = find_gateway(url, token).get("/v1/human-tasks", state=state, kind=kind, limit=limit, before=before)
    tasks: list[dict[str, Any]] = answer["tasks"]
    if json:
        printer.json(answer)
    elif not tasks:
        printer.line("No open tasks." if state == "open" and kind is None else "No matching tasks.")
    else:
        rows = [
            (
                each["task_id"],
                each["kind"],
                each["state"],
                (each["call"]["tool"] or {}).get("name", ""),
                _format_time(each),
                each["question"]["why"],
            )
            for each in tasks
        ]
        printer.table(("task", "kind", "state", "tool", "since", "why"), rows)


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
    outcome: Annotated[
        Outcome,
        typer.Argument(help="happened or did_not_happen if the task's kind is reconcile, otherwise done or dismissed."),
    ],
    reason: Annotated[str, typer.Option(help="How you know, or what you did. Recorded.")],
    code: Code = "",
    url: Url = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Resolve a task. A reconciled call that did not happen may be repeated with its key. Needs an operator."""
    body = {"outcome": outcome, "reason": reason}
    requests = OperatorRequests(find_gateway(url, token), code)
    answer = requests.send("POST", f"{_build_task_path(task_id)}/resolve", body)
    if json:
        printer.json(answer)
    elif answer["kind"] == "reconcile":
        printer.success(f"Task resolved: call {answer['call']['call_id']} is now {answer['call']['state']}.")
    else:
        printer.success(f"Task resolved: {answer['resolution']}.")


def _build_task_path(task_id: str) -> str:
    from urllib.parse import quote

    return f"/v1/human-tasks/{quote(task_id, safe='')}"


def _format_time(task: dict[str, Any]) -> str:
    return str(task["opened_at"]).partition(".")[0].replace("T", " ").removesuffix("+00:00")
