"""Render the templates of this folder. Values are escaped, and a missing variable is an error."""

import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from deputize.core.settings.urls import (
    ACCOUNTS_PAGE_PATH,
    AGENTS_PAGE_PATH,
    APPROVALS_PAGE_PATH,
    AUDIT_PAGE_PATH,
    CALLS_PAGE_PATH,
    CONSOLE_PATH,
    FLOWS_PAGE_PATH,
    POLICIES_PAGE_PATH,
    SIGN_OUT_PATH,
    SWITCHES_PAGE_PATH,
    TOOLS_PAGE_PATH,
)

_TEMPLATE_DIR = files("deputize.interfaces.console") / "templates"
STYLESHEET = (_TEMPLATE_DIR / "style.css").read_bytes()
# The digest in its name lets browsers cache it for ever.
STYLESHEET_PATH = f"{CONSOLE_PATH}/style-{hashlib.sha256(STYLESHEET).hexdigest()[:16]}.css"
SCRIPT = (_TEMPLATE_DIR / "script.js").read_bytes()
SCRIPT_PATH = f"{CONSOLE_PATH}/script-{hashlib.sha256(SCRIPT).hexdigest()[:16]}.js"
_ENVIRONMENT = Environment(
    loader=PackageLoader("deputize.interfaces.console"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_ENVIRONMENT.globals.update(
    home_path=CONSOLE_PATH,
    calls_path=CALLS_PAGE_PATH,
    flows_path=FLOWS_PAGE_PATH,
    approvals_path=APPROVALS_PAGE_PATH,
    tools_path=TOOLS_PAGE_PATH,
    accounts_path=ACCOUNTS_PAGE_PATH,
    policies_path=POLICIES_PAGE_PATH,
    agents_path=AGENTS_PAGE_PATH,
    audit_path=AUDIT_PAGE_PATH,
    switches_path=SWITCHES_PAGE_PATH,
    sign_out_path=SIGN_OUT_PATH,
    stylesheet_path=STYLESHEET_PATH,
    script_path=SCRIPT_PATH,
    # The frame of a page for a person who is not signed in.
    menu=(),
    nonce="",
    role="",
    search_text="",
    needs_code=False,
    station=None,
    is_followed=False,
    servers=(),
)


def render_template(template: str, *, root: str, **variables: Any) -> str:
    """Render a template. `root` is the path prefix under which a reverse proxy serves this gateway."""
    return _ENVIRONMENT.get_template(template).render(root=root, **variables)
