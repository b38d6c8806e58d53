"""The console's pages as doors: a session in the browser's cookie opens them, and forms that belong to that session.

Whoever holds a session can be made to send a form by any page they look at, so forms from elsewhere are tried as well.
Above: `proofs.confused_deputy`. Below: `doors`, `answers`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlencode

from deputize.core.errors import PermissionDenied, SignInFailed
from deputize.doors.console.cookies import SESSION
from deputize.lifecycle.servers.links import BACK, PAGE
from proofs.deputy.answers import slug_of
from proofs.deputy.doors import FORM, Door, Tried, carriers
from proofs.deputy.site import ELSEWHERE, SERVER
from proofs.kit.wire import Line

_HOME = "/console/tickets"
_ONE = f"{_HOME}/{{ticket_id}}"
_TOKEN = "form_token"
_WRITTEN = re.compile(rf'name="{_TOKEN}" value="([^"]+)"'.encode())
# As long and of the same letters as a real one.
_GUESSED = "0123456789ab" * 4


def pages(url: str, ticket: str, filled: Mapping[str, str]) -> list[Door]:
    """Every page and form behind a sign-in; `filled` is what the forms about this ticket send."""
    origin = {"origin": url, "sec-fetch-site": "same-origin", "content-type": FORM}
    mine = {_TOKEN: filled[_TOKEN]}
    forms = {f"{_ONE}/approve": filled, f"{_ONE}/deny": filled, "/console/sign-out": mine}
    forms |= {f"{PAGE}/{{server}}/link": mine, f"{PAGE}/{{server}}/unlink": mine}
    seen = (_HOME, _ONE, PAGE, BACK)
    looked = [Door(name=f"GET {path}", method="GET", path=path, cookie=SESSION) for path in seen]
    sent = [
        Door(name=f"POST {path}", method="POST", path=path, headers=origin, cookie=SESSION, form=form)
        for path, form in forms.items()
    ]
    return [replace(door, path=door.path.format(ticket_id=ticket, server=SERVER)) for door in (*looked, *sent)]


async def form_token(url: str, session: str) -> str:
    """What every form of this session carries."""
    line = Line.to(url)
    answer = await line.get(_HOME, cookie=f"{SESSION}={session}")
    line.close()
    found = _WRITTEN.search(answer.body)
    if found is None:
        raise RuntimeError(f"a session opened no page: {answer.status} {answer.body[:300]!r}")
    return found[1].decode()


async def try_pages(url: str, doors: Sequence[Door], session: str, token: str, tried: Tried) -> None:
    """A good token everywhere but in a browser's session, and a good session in forms that are not its own."""
    line, shown = Line.to(url), {"authorization": f"Bearer {token}"}
    for door in doors:
        for carrier in carriers(token):
            answer = await door.ask_oddly(line, carrier, token)
            _count(tried, f"misplaced: {carrier} at {door.name}", slug_of(answer), SignInFailed.face.slug)
        answer = await line.send(door.method, door.path, headers={**door.headers, **shown}, body=door.sent)
        _count(tried, f"misplaced: a bearer token at {door.name}", slug_of(answer), SignInFailed.face.slug)
        for label, foreign in _foreign(door) if door.form else ():
            answer = await foreign.ask(line, session)
            _count(tried, f"foreign: {label} at {door.name}", slug_of(answer), PermissionDenied.face.slug)
        if door.form and door.path.startswith(_HOME):
            # Where only what the code of a ticket opened may stand.
            body = urlencode({**door.form, "session": session}).encode()
            answer = await line.send(door.method, door.path, headers=door.headers, body=body)
            _count(tried, f"misplaced: a session in the form at {door.name}", slug_of(answer), SignInFailed.face.slug)
    line.close()


def _foreign(door: Door) -> Iterator[tuple[str, Door]]:
    """The same form as somebody else's page would have a browser send it."""
    own = {name: value for name, value in door.headers.items() if name == "content-type"}
    origins = {
        "no origin": {}, "another origin": {"origin": ELSEWHERE}, "the origin null": {"origin": "null"},
        "another site": {"sec-fetch-site": "cross-site"}, "a site beside": {"sec-fetch-site": "same-site"},
        "our origin, said by another site": {**door.headers, "sec-fetch-site": "cross-site"},
        "our site, said by another origin": {**door.headers, "origin": ELSEWHERE},
    }  # fmt: skip
    for label, said in origins.items():
        yield label, replace(door, headers={**own, **said})
    rest = {name: value for name, value in door.form.items() if name != _TOKEN} or {"reason": "seen"}
    for label, token in (("no form token", {}), ("an empty one", {_TOKEN: ""}), ("a guessed one", {_TOKEN: _GUESSED})):
        yield label, replace(door, form={**token, **rest})


def _count(tried: Tried, what: str, slug: str, expected: str) -> None:
    tried.tries += 1
    tried.refusals[slug] += 1
    if slug != expected:
        tried.accepted += 1
        tried.note(f"accepted: {what}: {slug or 'no problem'}")
