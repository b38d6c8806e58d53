"""Show problems and unexpected errors as pages."""

from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from deputize.core.errors import NoSuchRoute, Problem, find_problem_by_number
from deputize.core.settings.urls import SIGN_IN_PATH
from deputize.interfaces.asgi_http import hide_internal_error, read_trace_id
from deputize.interfaces.console.pages import ConsolePages
from deputize.interfaces.console.paths import choose_own_path, strip_form_action
from deputize.interfaces.console.view import format_advice, format_sentence
from deputize.operations.gateway import ConsoleSession


class ErrorPages(ConsolePages):
    """The handlers of what other handlers raise, and of the pages of error codes."""

    async def show_code(self, request: Request, session: ConsoleSession) -> Response:
        """Show what an error code means, and what to do about it."""
        kind = find_problem_by_number(str(request.path_params["code"]))
        if kind is None:
            raise NoSuchRoute("this release has no such error code")
        spec = kind.spec
        return self._render_page(
            "message.html",
            session,
            title=f"{spec.e_number}: {spec.title}",
            paragraphs=[spec.advice, f"Programs get it as {spec.slug}, with the status {spec.http}."],
            link=None,
            trace="",
        )

    async def handle_problem(self, request: Request, problem: Exception) -> Response:
        """Render a problem as a page."""
        assert isinstance(problem, Problem)
        sign_in_path = None
        if problem.spec.http == 401 and self._has_sign_in:
            sign_in_path = f"{SIGN_IN_PATH}?{urlencode({'to': choose_own_path(strip_form_action(request.url.path))})}"
        return self._render_message(
            problem.spec.title,
            format_sentence(problem.message),
            format_advice(problem),
            sign_in_path=sign_in_path,
            trace=f"{problem.spec.e_number} · trace {read_trace_id(request.scope)}",
            status=problem.spec.http,
        )

    async def handle_http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return self._render_message("Page not found", "There is no page at this address.", status=404)
        return self._render_message(
            "Method not allowed", "Open the page again and use its buttons.", status=error.status_code
        )

    async def handle_unexpected_error(self, request: Request, error: Exception) -> Response:
        return await self.handle_problem(request, hide_internal_error(error, read_trace_id(request.scope)))
