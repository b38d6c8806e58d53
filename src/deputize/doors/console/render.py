"""Templates of this folder into pages. Whatever is put into one is escaped; what is missing in one is an error."""

import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

_FOLDER = files("deputize.doors.console") / "templates"
STYLE = (_FOLDER / "style.css").read_bytes()
# In its address, so that a browser may keep it for as long as it is this one.
STYLE_NAME = f"style-{hashlib.sha256(STYLE).hexdigest()[:16]}.css"
_PAGES = Environment(
    loader=PackageLoader("deputize.doors.console"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)


def render(template: str, *, root: str, **facts: Any) -> str:
    """`root` is what every address of ours begins with, as this gateway is reached from outside."""
    return _PAGES.get_template(template).render(root=root, style=STYLE_NAME, **facts)
