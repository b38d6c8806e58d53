"""Show calls as they happen, one call with its reasons, and audit entries; cancel, retry and undo a call after a
question.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from deputize.core.caller import UNDO_SCOPE, Caller, parse_grant
from deputize.core.clock import make_first_id
from deputize.core.contract.contract import MutationClass
from deputize.core.errors import CallNotFound, MalformedRequest, Problem, find_problem_by_number
from deputize.core.settings.urls import AUDIT_PAGE_PATH, CALLS_PAGE_PATH
from deputize.core.states import TERMINAL_STATES, State
from deputize.interfaces.audit_download import build_export_headers, stream_export
from deputize.interfaces.console.call_view import (
    build_call_view,
    build_entry_view,
    build_row,
    build_rows,
    build_undo_view,
)
from deputize.interfaces.console.csrf import SECURITY_HEADERS, read_form, require_form_token
from deputize.interfaces.console.entry_query import (
    FILTERS,
    build_query,
    format_address,
    parse_before,
    read_filters,
)
from deputize.interfaces.console.pages import LIVE_PATH, ConsolePages
from deputize.interfaces.console.render import render_template
from deputize.interfaces.console.view import build_alert, format_line
from deputize.interfaces.event_stream import stream_events
from deputize.operations.gateway import (
    AuditFormat,
    AuditQuery,
    ConsoleSession,
    Gateway,
    TailEvent,
    UndoSelection,
    require_full_operator,
)

_PAGE_SIZE: Final = 50
# Of more rows at once, the newest come: no one reads all of them.
_MAX_LIVE_ROWS: Final = 25
_EXPORT_FORMATS: Final[Mapping[str, AuditFormat]] = {"csv": "csv", "jsonl": "jsonl"}
_REFUSED: Final = frozenset({State.DENIED, State.BLOCKED, State.VALIDATION_FAILED, State.SCHEMA_PARSE_FAILED})
_NO_PAGE: Final[dict[str, Any]] = {"entries": [], "next_before": None, "detail": None}


class CallPages(ConsolePages):
    """The handlers of /console/calls."""

    section_path = CALLS_PAGE_PATH
    title = "Calls"
    of_calls = True

    def __init__(self, get_gateway: Callable[[], Gateway], shutdown: asyncio.Event) -> None:
        super().__init__(get_gateway)
        self._shutdown = shutdown

    async def list_entries(self, request: Request, session: ConsoleSession) -> Response:
        """List newest first, with the filters of the address. A filter that cannot be is shown with what is wrong."""
        caller, filters = session.caller, read_filters(request.query_params)
        page, problem = _NO_PAGE, None
        first_live_id = make_first_id(self._get_gateway().clock.epoch_ms())
        try:
            query, before = build_query(filters, of_calls=self.of_calls), parse_before(request.query_params)
            search = self._get_gateway().audit_search
            page = await search.search(caller, query, before=before, limit=_PAGE_SIZE, is_page=True)
            if before is not None and page["entries"]:
                page["entries"] = await self._omit_shown_calls(caller, query, page["entries"], before)
        except MalformedRequest as refusal:
            before, problem = None, refusal
        older = page["next_before"]
        is_live = self.of_calls and before is None and problem is None
        return self._render_page(
            "calls.html",
            session,
            status=200 if problem is None else problem.spec.http,
            has_script=True,
            title=self.title,
            rows=build_rows(page["entries"]),
            fields=FILTERS,
            filters={name: format_line(text) for name, text in filters.items()},
            list_path=self.section_path,
            older_path=None if older is None else format_address(self.section_path, filters, before=older),
            newest_path=None if before is None else format_address(self.section_path, filters),
            live_path=format_address(LIVE_PATH, filters, after=first_live_id) if is_live else None,
            exports=[
                (name, format_address(f"{AUDIT_PAGE_PATH}/export", filters, format=name))
                for name in _EXPORT_FORMATS
                if problem is None and not self.of_calls
            ],
            detail=page["detail"],
            alert=None if problem is None else build_alert(problem),
            is_of_calls=self.of_calls,
        )

    async def _omit_shown_calls(
        self, caller: Caller, query: AuditQuery, entries: list[dict[str, Any]], before: UUID
    ) -> list[dict[str, Any]]:
        """Leave out the older entries of calls that are in the list above: they say how far the call was, not is."""
        call_ids = {each["entry"]["call"] for each in entries if "call" in each["entry"]}
        shown = await self._get_gateway().audit_search.find_calls_from(caller, query, sorted(call_ids), before)
        return [each for each in entries if each["entry"].get("call") not in shown]

    async def stream_rows(self, request: Request, session: ConsoleSession) -> Response:
        """Stream rows as calls are recorded, for as long as the session lasts: those after the last that the browser
        got, or after the time of its page.
        """
        query = build_query(read_filters(request.query_params), of_calls=True)
        after = _parse_id(request.headers.get("last-event-id") or request.query_params.get("after"))
        events = self._get_gateway().audit_tail.follow(
            session.caller, query, after=after, most=_MAX_LIVE_ROWS, is_page=True
        )
        await anext(events)

        def format_row(entry: dict[str, Any]) -> bytes:
            return self._format_row(entry, build_row(entry))

        def format_rows(event: TailEvent) -> bytes:
            gap = b"event: gap\ndata: gap\n\n" if event.is_gap else b""
            return gap + b"".join(each.format_once("row", format_row) for each in event.entries)

        stream = stream_events(events, self._shutdown, format_rows, lambda _: b"event: end\ndata: end\n\n")
        return StreamingResponse(stream, media_type="text/event-stream", headers=SECURITY_HEADERS)

    def _format_row(self, found: Mapping[str, Any], row: Mapping[str, Any]) -> bytes:
        markup = render_template("call_row.html", root=self._root, row=row).replace("\r", "").replace("\n", " ")
        return f"id: {found['id']}\nevent: row\ndata: {markup}\n\n".encode()

    async def show_call(self, request: Request, session: ConsoleSession) -> Response:
        gateway, caller, call_id = self._get_gateway(), session.caller, _parse_call_id(request)
        history = await gateway.calls.load_history(caller, call_id)
        call, entries = await gateway.calls.describe_history(caller, history)
        outcome = await gateway.calls.open_outcome(caller, history)
        arguments = await gateway.calls.open_arguments(caller, history)
        decision = await gateway.explanations.explain_history(
            caller, history, names=[each for each in (entries[0]["user"], *entries[0]["agents"]) if each]
        )
        tool = call["tool"]
        may_see_steps = caller.is_admin or _is_own(caller, call)
        is_flow = may_see_steps and await gateway.flows.is_flow(caller, str(tool["name"]), str(tool.get("version")))
        view = build_call_view(
            call,
            entries,
            decision,
            now=gateway.clock.now(),
            is_flow=is_flow,
            is_step=history.is_step,
            outcome=outcome,
            arguments=arguments,
            grant=parse_grant(history.row["caller_agent"]) if history.row is not None else "",
            keeps_arguments=history.row is not None and history.row["is_run"],
        )
        return self._render_page(
            "call.html",
            session,
            has_script=True,
            followed_path="" if view["is_ended"] else f"{CALLS_PAGE_PATH}/{call_id}",
            call=view,
            acts=_list_acts(
                caller,
                call,
                is_run=history.row is not None and history.row["is_run"],
                did_nothing=_did_nothing(call, entries[-1]["entry"]),
            ),
        )

    async def confirm_cancel(self, request: Request, session: ConsoleSession) -> Response:
        call_id = _parse_call_id(request)
        return await self._render_cancel(session, call_id)

    async def cancel(self, request: Request) -> Response:
        session, call_id, _ = await self._read_call_form(request)
        try:
            await self._get_gateway().cancellations.cancel_call(session.caller, call_id)
        except CallNotFound:
            raise
        except Problem as problem:
            return await self._render_cancel(session, call_id, problem)
        return self._redirect(f"{CALLS_PAGE_PATH}/{call_id}")

    async def confirm_retry(self, request: Request, session: ConsoleSession) -> Response:
        return await self._render_retry(session, _parse_call_id(request))

    async def retry(self, request: Request) -> Response:
        """Retry the call, and show the one that was made; what refuses that one is on its page."""
        session, call_id, _ = await self._read_call_form(request)
        try:
            outcome = await self._get_gateway().retry_call(session.caller, call_id)
        except CallNotFound:
            raise
        except Problem as problem:
            return await self._render_retry(session, call_id, problem)
        return self._redirect(f"{CALLS_PAGE_PATH}/{outcome.call_id}")

    async def confirm_undo(self, request: Request, session: ConsoleSession) -> Response:
        return await self._render_undo(session, _parse_call_id(request))

    async def undo(self, request: Request) -> Response:
        """Undo what the plan that the page showed has ready, and show what was done and what is left."""
        session, call_id, form = await self._read_call_form(request)
        selection = UndoSelection(call_id=call_id)
        try:
            answer = await self._get_gateway().undo.execute_undo(session.caller, selection, form.get("digest", ""))
        except Problem as problem:
            return await self._render_undo(session, call_id, problem)
        return await self._render_undo(session, call_id, answer=answer)

    async def _read_call_form(self, request: Request) -> tuple[ConsoleSession, str, dict[str, str]]:
        form = await read_form(request, origin=self._console.origin)
        session = await self._load_session(request)
        require_form_token(form.get("form_token"), session.form_token)
        return session, _parse_call_id(request), form

    async def _render_undo(
        self,
        session: ConsoleSession,
        call_id: str,
        problem: Problem | None = None,
        answer: Mapping[str, Any] | None = None,
    ) -> Response:
        gateway, caller = self._get_gateway(), session.caller
        # A call of others is not there, also if nothing of it can be undone.
        await gateway.calls.describe_call(caller, call_id)
        plan = None if answer is None else answer["left"]
        if plan is None:
            plan = await gateway.undo.plan_undo(caller, UndoSelection(call_id=call_id))
        return self._render_page(
            "undo.html",
            session,
            status=200 if problem is None else problem.spec.http,
            call_id=call_id,
            may_undo=UNDO_SCOPE in caller.scopes,
            alert=None if problem is None else build_alert(problem),
            **build_undo_view(
                plan,
                () if answer is None else answer["made"],
                None if answer is None else answer["approval"],
                now=gateway.clock.now(),
            ),
        )

    async def _render_retry(self, session: ConsoleSession, call_id: str, problem: Problem | None = None) -> Response:
        """Ask before a call is retried, which its maker alone may, as over REST."""
        call = await self._get_gateway().calls.describe_call(session.caller, call_id)
        if not _is_own(session.caller, call):
            raise CallNotFound("no call has this id, or it is not yours", details={"call_id": call_id})
        return self._render_page(
            "confirm.html",
            session,
            status=200 if problem is None else problem.spec.http,
            title="Retry this call?",
            facts=[
                ("Tool", format_line(call["tool"]["name"])),
                ("State", format_line(str(call["state"]).replace("_", " "))),
                ("Call", format_line(call_id)),
            ],
            notes=[
                "It is called again with the same arguments, as a call of yours that the policies decide on.",
                "That is refused where it could do something twice. Retrying several times makes one call.",
            ],
            action=f"{CALLS_PAGE_PATH}/{call_id}/retry",
            button="Retry the call",
            back_path=f"{CALLS_PAGE_PATH}/{call_id}",
            asks_reason=False,
            alert=None if problem is None else build_alert(problem),
            reason="",
        )

    async def _render_cancel(self, session: ConsoleSession, call_id: str, problem: Problem | None = None) -> Response:
        call = await self._get_gateway().calls.describe_call(session.caller, call_id)
        if not _is_own(session.caller, call):
            require_full_operator(session.caller)
        return self._render_page(
            "confirm.html",
            session,
            status=200 if problem is None else problem.spec.http,
            title="Cancel this call?",
            facts=[
                ("Tool", format_line(call["tool"]["name"])),
                ("State", format_line(str(call["state"]).replace("_", " "))),
                ("Call", format_line(call_id)),
            ],
            notes=[
                "A call that waits or is queued ends at once, and nothing is executed.",
                "A running tool is stopped if it can be; its outcome then says what is known. Nothing is undone.",
            ],
            action=f"{CALLS_PAGE_PATH}/{call_id}/cancel",
            button="Cancel the call",
            back_path=f"{CALLS_PAGE_PATH}/{call_id}",
            asks_reason=False,
            alert=None if problem is None else build_alert(problem),
            reason="",
        )


class AuditPages(CallPages):
    """The handlers of /console/audit: every entry, also of administrative acts and decisions."""

    section_path = AUDIT_PAGE_PATH
    title = "Audit"
    of_calls = False

    async def export(self, request: Request, session: ConsoleSession) -> Response:
        """Send what the filters of the address match as a file, newest first."""
        export_format = _EXPORT_FORMATS.get(request.query_params.get("format", ""))
        if export_format is None:
            raise MalformedRequest(f"format must be one of {', '.join(_EXPORT_FORMATS)}", details={"field": "format"})
        query = build_query(read_filters(request.query_params), of_calls=False)
        chunks = self._get_gateway().audit_export.export(session.caller, query, export_format)
        first_chunk = await anext(chunks)
        return StreamingResponse(
            stream_export(first_chunk, chunks, self._shutdown),
            headers={**SECURITY_HEADERS, **build_export_headers(export_format)},
        )

    async def show_entry(self, request: Request, session: ConsoleSession) -> Response:
        gateway = self._get_gateway()
        entry = await gateway.audit_search.show_entry(session.caller, str(request.path_params["entry_id"]))
        view = build_entry_view(entry, now=gateway.clock.now())
        return self._render_page("entry.html", session, has_script=True, entry=view)


def _is_own(caller: Caller, call: Mapping[str, Any]) -> bool:
    """Tell whether a person or their agents made a stored call."""
    return bool(call.get("user") == caller.user)


def _list_acts(caller: Caller, call: Mapping[str, Any], *, is_run: bool, did_nothing: bool) -> list[tuple[str, str]]:
    """List the forms of a call that this person may open, by name and text. The gateway decides when one is sent.

    The arguments of a call that was answered at once are not stored: repeating it is a new call.
    """
    is_own, state = _is_own(caller, call), State(call["state"])
    acts = []
    if state not in TERMINAL_STATES:
        return [("cancel", "Cancel…")] if is_own or caller.can_operate else []
    if is_own and is_run and state is not State.SUCCEEDED:
        acts.append(("retry", "Retry…"))
    is_write = call.get("mutation_class", MutationClass.READ) != MutationClass.READ
    if is_write and not did_nothing and (is_own or caller.is_auditor):
        acts.append(("undo", "Undo…"))
    return acts


def _did_nothing(call: Mapping[str, Any], last: Mapping[str, Any]) -> bool:
    """Tell whether a call ended without an effect: refused before its tool began, or by an error that proves it."""
    kind = find_problem_by_number(str(last.get("error") or ""))
    is_refused = call["state"] in _REFUSED and "attempts" not in last
    return is_refused or (kind is not None and kind.proves_nothing_happened)


def _parse_call_id(request: Request) -> str:
    call_id = _parse_id(str(request.path_params["call_id"]))
    if call_id is None:
        raise CallNotFound("no call has this id, or it is not yours")
    return str(call_id)


def _parse_id(text: str | None) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        return None
