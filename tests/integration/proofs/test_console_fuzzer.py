"""The fuzzer of pages knows every page there is, and sees what a page must never hold."""

import pytest

from proofs.fuzz.console_fuzzer import find_page_fault, list_routes
from proofs.fuzz.values import HOSTILE_TEXTS

pytestmark = pytest.mark.nightly


def test_every_page_and_form_of_the_console_is_asked() -> None:
    assert {
        "GET /console/approvals",
        "GET /console/approvals/{approval_id}",
        "POST /console/approvals/{approval_id}/approve",
        "POST /console/sign-out",
    } <= set(list_routes())


@pytest.mark.parametrize(
    ("page", "wrong"),
    [
        ("<p>&lt;script data-poison&gt;alert(1)</p>\n<textarea>a = b</textarea>", None),
        ("<p>\\u202e is told as what it is</p>", None),
        ("<p><script>alert(1)</script></p>", "a page that runs what somebody wrote"),
        ("<p><b data-poison></p>", "a page that runs what somebody wrote"),
        ('<input value="" onfocus=alert(1)>', "a page that runs what somebody wrote"),
        ('<a href="JavaScript:alert(1)">', "a page that runs what somebody wrote"),
        ("<p>a\u202eb</p>", "a page with something hidden in it"),
        ("<p>\x1b[31mred</p>", "a page with something hidden in it"),
    ],
)
def test_a_page_neither_runs_nor_hides_what_somebody_wrote(page: str, wrong: str | None) -> None:
    assert find_page_fault(page.encode()) == wrong


def test_injected_text_in_approval_requests_would_be_found() -> None:
    found = {find_page_fault(f"<p>{text}</p>".encode()) for text in HOSTILE_TEXTS}

    assert found == {None, "a page that runs what somebody wrote", "a page with something hidden in it"}
