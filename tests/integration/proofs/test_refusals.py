"""What an answer says of the token it was asked with, at interfaces that speak JSON and at pages that people read."""

from typing import Any

import orjson
import pytest

from deputize.core.errors import AuthorityRevoked, NotAnApprover, PermissionDenied, SignInFailed, TokenAudienceMismatch
from deputize.interfaces.console.render import render_template
from proofs.confused_deputy.refusals import is_accepted, is_refused, read_rule, read_slug
from proofs.kit.http_client import HttpResponse

pytestmark = pytest.mark.nightly

_MARK = "a word of theirs"


def _make_page(status: int, *, number: str = "", text: str = "") -> HttpResponse:
    trace = f"{number} · trace 0af7" if number else ""
    about = {"user": "", "form_token": "", "can_sign_out": False, "title": "T", "paragraphs": [text], "link": None}
    page = render_template("message.html", root="", trace=trace, **about)
    return HttpResponse(status=status, headers={"content-type": "text/html; charset=utf-8"}, body=page.encode())


def _make_json(status: int, slug: str, rule: str) -> HttpResponse:
    body = f'{{"error": {{"slug": "{slug}", "details": {{"rule": "{rule}"}}}}}}'
    return HttpResponse(status=status, headers={"content-type": "application/problem+json"}, body=body.encode())


def _make_batch(*slugs: str) -> HttpResponse:
    results: list[dict[str, Any]] = [
        {"envelope": {"error": {"slug": each}} if each else {"result": {}}} for each in slugs
    ]
    return HttpResponse(status=200, headers={}, body=orjson.dumps({"results": results}))


def _make_redirect(location: str) -> HttpResponse:
    return HttpResponse(status=303, headers={"location": location}, body=b"")


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (_make_page(401, number=SignInFailed.spec.e_number), True),
        (_make_page(401, number=AuthorityRevoked.spec.e_number), True),
        (_make_page(403, number=PermissionDenied.spec.e_number), False),
        (_make_page(200, text=_MARK), False),
        (_make_redirect("/console/sign-in?to=%2Fconsole%2Fapprovals"), True),
        (_make_redirect("/console/approvals/01890000-0000-7000-8000-000000000000"), False),
        (_make_json(401, TokenAudienceMismatch.spec.slug, ""), True),
        (_make_json(403, NotAnApprover.spec.slug, "humans-only"), False),
        (_make_batch(AuthorityRevoked.spec.slug, AuthorityRevoked.spec.slug), True),
        (_make_batch(AuthorityRevoked.spec.slug, ""), False),
    ],
)
def test_a_refusal_is_about_the_token(answer: HttpResponse, refused: bool) -> None:
    assert is_refused(answer) is refused


def test_a_refused_approver_is_authenticated_and_refused() -> None:
    assert is_accepted(_make_json(403, NotAnApprover.spec.slug, "approver-group"), ())
    assert is_accepted(_make_page(403, text=_MARK), (_MARK,))
    assert not is_accepted(_make_page(403, number=PermissionDenied.spec.e_number), (_MARK,))
    assert not is_accepted(_make_json(403, PermissionDenied.spec.slug, "own-origin"), ())


def test_a_refusal_names_its_rule_or_its_problem() -> None:
    assert read_rule(_make_json(403, NotAnApprover.spec.slug, "humans-only")) == "humans-only"
    assert read_rule(_make_page(401, number=AuthorityRevoked.spec.e_number)) == read_slug(
        _make_page(401, number=AuthorityRevoked.spec.e_number)
    )
