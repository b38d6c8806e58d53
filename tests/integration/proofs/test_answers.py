"""What an answer says of the token it was asked with, at doors that speak JSON and at pages that people read."""

import pytest

from deputize.core.errors import NotAnApprover, PermissionDenied, Revoked, SignInFailed, TokenAudience
from deputize.doors.console.render import render
from proofs.deputy.answers import is_refused, lets_in, rule_of, slug_of
from proofs.kit.wire import Answer

_MARK = "a word of theirs"


def _page(status: int, *, number: str = "", shown: str = "") -> Answer:
    trace = f"{number} · trace 0af7" if number else ""
    about = {"who": "", "form_token": "", "leaves": False, "title": "T", "paragraphs": [shown], "link": None}
    page = render("told.html", root="", trace=trace, **about)
    return Answer(status=status, headers={"content-type": "text/html; charset=utf-8"}, body=page.encode())


def _json(status: int, slug: str, rule: str) -> Answer:
    body = f'{{"error": {{"slug": "{slug}", "details": {{"rule": "{rule}"}}}}}}'
    return Answer(status=status, headers={"content-type": "application/problem+json"}, body=body.encode())


def _way(location: str) -> Answer:
    return Answer(status=303, headers={"location": location}, body=b"")


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (_page(401, number=SignInFailed.face.e_number), True),
        (_page(401, number=Revoked.face.e_number), True),
        (_page(403, number=PermissionDenied.face.e_number), False),
        (_page(200, shown=_MARK), False),
        (_way("/console/sign-in?to=%2Fconsole%2Ftickets"), True),
        (_way("/console/tickets/01890000-0000-7000-8000-000000000000"), False),
        (_json(401, TokenAudience.face.slug, ""), True),
        (_json(403, NotAnApprover.face.slug, "humans-only"), False),
    ],
)
def test_a_refusal_is_about_the_token(answer: Answer, refused: bool) -> None:
    assert is_refused(answer) is refused


def test_whoever_may_not_decide_was_let_in_and_told_so() -> None:
    assert lets_in(_json(403, NotAnApprover.face.slug, "approver-group"), ())
    assert lets_in(_page(403, shown=_MARK), (_MARK,))
    assert not lets_in(_page(403, number=PermissionDenied.face.e_number), (_MARK,))
    assert not lets_in(_json(403, PermissionDenied.face.slug, "own-origin"), ())


def test_a_refusal_names_its_rule_or_its_problem() -> None:
    assert rule_of(_json(403, NotAnApprover.face.slug, "humans-only")) == "humans-only"
    assert rule_of(_page(401, number=Revoked.face.e_number)) == slug_of(_page(401, number=Revoked.face.e_number))
