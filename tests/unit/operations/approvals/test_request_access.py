"""Requests that look alike are decided together only if their real arguments are equal."""

from dataclasses import replace
from typing import Any, cast

import pytest

from deputize.govern.approvals.approvers import OpenApproval
from deputize.lifecycle.approval.approval_request import ApprovalContents
from deputize.operations.approvals.request_access import ApprovalRequestView

pytestmark = pytest.mark.requirement("GOV-3")

SHOWN: dict[str, Any] = {"arguments": {"to": "bo", "password": "[redacted]"}, "for_user": "ana", "agents": []}
CONTENTS = ApprovalContents(
    presentation=SHOWN, binding_digests={}, preview=b"", guards={}, further_demands=(),
    argument_fingerprints={"to": "1", "password": "2"},
)  # fmt: skip


def _make_view(contents: ApprovalContents) -> ApprovalRequestView:
    row, approval = cast("Any", {}), cast("OpenApproval", None)
    return ApprovalRequestView(row=row, contents=contents, groups=(), votes=(), open_approval=approval)


def test_arguments_that_are_shown_alike_but_differ_are_found() -> None:
    other = replace(CONTENTS, argument_fingerprints={"to": "1", "password": "3"})
    assert _make_view(CONTENTS).list_differences(_make_view(CONTENTS)) == set()
    assert _make_view(CONTENTS).list_differences(_make_view(other)) == {"password"}


def test_a_request_of_an_earlier_release_is_compared_with_none() -> None:
    old = replace(CONTENTS, argument_fingerprints=None)
    assert _make_view(CONTENTS).list_differences(_make_view(old)) == {"to", "password"}
    assert _make_view(old).list_differences(_make_view(old)) == {"to", "password"}
