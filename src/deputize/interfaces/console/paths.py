"""Tell the console's own pages from other paths, and read the ids in them."""

import re

from starlette.requests import Request

from deputize.core.errors import HumanTaskNotFound
from deputize.core.settings.urls import CONSOLE_PATH

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PAGES = "calls|flows|switches|approvals|tools|servers|policies|agents|audit"
_OWN_PATHS = re.compile(rf"{CONSOLE_PATH}(?:/(?:{_PAGES})(?:/(?!\.)[A-Za-z0-9._-]{{1,200}}){{0,2}})?")


def is_id(text: str) -> bool:
    """Tell whether a text has the form of an id, as of a call or an approval request."""
    return _ID.fullmatch(text) is not None


def parse_approval_id(request: Request) -> str:
    approval_id = str(request.path_params["approval_id"])
    if not is_id(approval_id):
        raise HumanTaskNotFound("there is no approval request with this id, or you may not see it")
    return approval_id


def choose_own_path(path: str) -> str:
    """Choose the page after a sign-in: only one of our own, to prevent open redirects."""
    return path if _OWN_PATHS.fullmatch(path) else CONSOLE_PATH


def strip_form_action(path: str) -> str:
    """Return the path of the page that a form is on, since a form's own path has no page."""
    return re.sub(
        r"/(?:code|approve|deny|cancel|retry|undo|revoke|off|on)$|/[^/]+/(?:link|unlink)$|/callback$", "", path
    )
