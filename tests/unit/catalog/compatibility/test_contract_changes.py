"""Two versions of a contract: what each changed field means to callers."""

from typing import Any

import pytest

from deputize.catalog.compatibility.contract_changes import JUDGED_FIELDS, compare_contracts
from deputize.core.contract.contract import Contract
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("CON-8")

USERS, ALL_USERS = ({"resource": "crm.users", "op": "update", "scope": scope} for scope in ("{id}", "*"))
ASYNC = {"timeout_class": "async", "seconds": 600}
WRITE: dict[str, Any] = {"effects": "write"}
CANCEL = {"compensation_class": "semantic", "tool": "crm.cancel", "bind": {"id": "/result/id"}}
CHECK = {"name": "positive", "holds": {"properties": {"output": {"type": "object"}}}}

LIMIT: dict[str, Any] = {"name": "few", "compare": ["count(/output/items) <= /input/limit"]}


def test_every_field_of_the_contract_is_judged() -> None:
    assert set(Contract.model_fields) == JUDGED_FIELDS


@pytest.mark.parametrize(
    ("before", "after", "level", "path"),
    [
        ({}, {"name": "other"}, "major", "/name"),
        ({}, {"title": "Another"}, "patch", "/title"),
        ({}, {"description": "Say the same in other words."}, "patch", "/description"),
        ({}, {"tags": ["crm"]}, "minor", "/tags"),
        ({"effects": "read"}, WRITE, "major", "/effects"),
        ({"effects": "destructive"}, WRITE, "minor", "/effects"),
        ({"resources": [USERS]}, {"resources": [ALL_USERS]}, "major", "/resources"),
        ({"resources": [ALL_USERS]}, {"resources": [USERS]}, "minor", "/resources"),
        ({"resources": [USERS]}, {"resources": [USERS, {**USERS, "op": "delete"}]}, "major", "/resources"),
        ({"auth": {"scopes": ["a"]}}, {"auth": {"scopes": ["a", "b"]}}, "major", "/auth"),
        ({"auth": {"scopes": ["a"]}}, {"auth": {"permissions": ["a:b"]}}, "major", "/auth"),
        ({"auth": {"scopes": ["a", "b"]}}, {"auth": {"scopes": ["b"]}}, "minor", "/auth"),
        ({"auth": {}}, {"auth": {"credential": "vault", "secret": "a"}}, "major", "/auth/credential"),
        (
            {"timeout": {"timeout_class": "standard"}},
            {"timeout": {"timeout_class": "long-running"}},
            "major",
            "/timeout/timeout_class",
        ),
        (
            {"timeout": {"timeout_class": "standard"}},
            {"timeout": {"timeout_class": "interactive"}},
            "minor",
            "/timeout/timeout_class",
        ),
        ({"timeout": {"seconds": 2}}, {"timeout": {"seconds": 4}}, "minor", "/timeout/seconds"),
        ({"timeout": ASYNC}, {"timeout": {**ASYNC, "seconds": 1200}}, "major", "/timeout/seconds"),
        (
            {**WRITE, "idempotency": {"upstream": "idempotent"}},
            {**WRITE, "idempotency": {"upstream": "cannot"}},
            "major",
            "/idempotency/upstream",
        ),
        (
            {**WRITE, "idempotency": {"upstream": "cannot"}},
            {**WRITE, "idempotency": {"upstream": "deduplicates"}},
            "minor",
            "/idempotency/upstream",
        ),
        (
            {"idempotency": {"upstream": "idempotent"}},
            {"idempotency": {"upstream": "cannot"}},
            "minor",
            "/idempotency/upstream",
        ),
        (
            {**WRITE, "idempotency": {"window_seconds": 9000}},
            {**WRITE, "idempotency": {"window_seconds": 7200}},
            "major",
            "/idempotency/window_seconds",
        ),
        ({}, {"idempotency": {"key_argument": "id"}}, "major", "/idempotency/key_argument"),
        ({"behaviours": ["idempotent"]}, {}, "major", "/behaviours"),
        ({}, {"behaviours": ["deterministic"]}, "minor", "/behaviours"),
        ({}, {"compensation": CANCEL}, "minor", "/compensation"),
        ({"compensation": CANCEL}, {}, "major", "/compensation"),
        (
            {"compensation": CANCEL},
            {"compensation": {**CANCEL, "compensation_class": "partial"}},
            "major",
            "/compensation",
        ),
        ({"compensation": CANCEL}, {"compensation": {**CANCEL, "within_seconds": 60}}, "major", "/compensation"),
        (
            {"compensation": CANCEL},
            {"compensation": {**CANCEL, "compensation_class": "full"}},
            "minor",
            "/compensation",
        ),
        ({}, {"requires_user_interaction": True}, "major", "/requires_user_interaction"),
        ({"requires_user_interaction": True}, {}, "minor", "/requires_user_interaction"),
        ({"open_world": False}, {}, "major", "/open_world"),
        ({"open_world": True}, {"open_world": False}, "minor", "/open_world"),
        ({}, {"recipient_argument": "to"}, "minor", "/recipient_argument"),
        ({"recipient_argument": "to"}, {}, "major", "/recipient_argument"),
        ({}, {"labels": {"accepts": ["public"]}}, "major", "/labels/accepts"),
        ({"labels": {"accepts": ["public"]}}, {}, "minor", "/labels/accepts"),
        ({}, {"labels": {"adds": ["private"]}}, "major", "/labels/adds"),
        ({"labels": {"adds": ["private"]}}, {}, "minor", "/labels/adds"),
        ({}, {"sandbox": {"tier": 1}}, "minor", "/sandbox"),
        ({"sandbox": {"tier": 1}}, {}, "major", "/sandbox"),
        ({"sandbox": {"tier": 1}}, {"sandbox": {"tier": 2}}, "major", "/sandbox"),
        ({"sandbox": {"tier": 1, "backend": "gvisor"}}, {"sandbox": {"tier": 1}}, "major", "/sandbox"),
        ({"sandbox": {"tier": 1}}, {"sandbox": {"tier": 1, "backend": "gvisor"}}, "minor", "/sandbox"),
        ({"sandbox": {"tier": 3}}, {"sandbox": {"tier": 3, "permissions": ["a:b"]}}, "major", "/sandbox"),
        ({}, {"freshness": {"max_age_seconds": 60}}, "major", "/freshness"),
        ({"freshness": {"max_age_seconds": 60}}, {"freshness": {"max_age_seconds": 9}}, "minor", "/freshness"),
        ({}, {"concurrency_safe": True}, "minor", "/concurrency_safe"),
        ({"concurrency_safe": True}, {}, "major", "/concurrency_safe"),
        ({}, {"interrupt": "block"}, "minor", "/interrupt"),
        ({"interrupt": "cancel"}, {"interrupt": "block"}, "major", "/interrupt"),
        ({}, {"max_inline": 9000}, "major", "/max_inline"),
        ({"max_inline": 9000}, {"max_inline": 9001}, "minor", "/max_inline"),
        ({}, {"objectives": {"p99_seconds": 1}}, "minor", "/objectives/p99_seconds"),
        ({"objectives": {"p99_seconds": 1}}, {"objectives": {"p99_seconds": 2}}, "major", "/objectives/p99_seconds"),
        ({"objectives": {"accuracy": 0.9}}, {"objectives": {"accuracy": 0.8}}, "major", "/objectives/accuracy"),
        ({"objectives": {"cost": 2}}, {"objectives": {"cost": 1}}, "minor", "/objectives/cost"),
        ({"objectives": {"availability": 0.9}}, {}, "major", "/objectives/availability"),
        ({}, {"alerts": {"error_rate": 0.1}}, "patch", "/alerts"),
        ({}, {"authority_rank": 9}, "minor", "/authority_rank"),
        ({}, {"native_ids": {"browser": {"action_id": "click"}}}, "minor", "/native_ids"),
        ({"undo": "crm.restore"}, {}, "major", "/undo"),
        ({}, {"undo": "crm.restore"}, "minor", "/undo"),
        ({"status": "crm.look"}, {}, "major", "/status"),
        ({"preview": True}, {}, "major", "/preview"),
        ({}, {"preview": True}, "minor", "/preview"),
        ({"aliases": ["crm.fetch"]}, {}, "major", "/aliases"),
        ({}, {"aliases": ["crm.fetch"]}, "minor", "/aliases"),
        ({"predicates": [CHECK]}, {}, "major", "/predicates/positive"),
        ({}, {"predicates": [CHECK]}, "minor", "/predicates/positive"),
        (
            {"predicates": [CHECK]},
            {"predicates": [{**CHECK, "holds": {}}]},
            "major",
            "/predicates/positive/holds/properties/output/type",
        ),
        (
            {"predicates": [LIMIT]},
            {"predicates": [{**LIMIT, "compare": ["/output/a > 0"]}]},
            "major",
            "/predicates/few/compare",
        ),
        (
            {"predicates": [LIMIT]},
            {"predicates": [{**LIMIT, "compare": [*LIMIT["compare"], "/output/a > 0"]}]},
            "minor",
            "/predicates/few/compare",
        ),
        (
            {"predicates": [LIMIT]},
            {"predicates": [{**LIMIT, "severity": "warning"}]},
            "major",
            "/predicates/few/severity",
        ),
        (
            {"predicates": [{**LIMIT, "severity": "warning"}]},
            {"predicates": [LIMIT]},
            "minor",
            "/predicates/few/severity",
        ),
        ({}, {"network": {"allowed_domains": ["a.example"]}}, "major", "/network"),
        ({}, {"error_schema": {}}, "major", "/error_schema/type"),
        ({"error_schema": {}}, {"error_schema": {"type": "object"}}, "minor", "/error_schema/type"),
    ],
)
def test_each_change_has_its_level_and_place(
    before: dict[str, Any], after: dict[str, Any], level: str, path: str
) -> None:
    changes = compare_contracts(make_contract(**before), make_contract(**after))
    assert (level, path) in [(each.level.label, each.path) for each in changes]
    assert changes[0].level.label == level


def test_the_number_and_the_changelog_are_no_change() -> None:
    assert (
        compare_contracts(make_contract(), make_contract(version="2.0.0", changelog="New.", breaking_changes=True))
        == ()
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"open_world": True}),
        ({"labels": {"accepts": ["a", "b"]}}, {"labels": {"accepts": ["b", "a"]}}),
        ({"behaviours": ["idempotent", "monotone"]}, {"behaviours": ["monotone", "idempotent"]}),
    ],
)
def test_the_same_said_in_another_way_is_no_change(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert compare_contracts(make_contract(**before), make_contract(**after)) == ()


def test_an_internal_argument_is_nothing_that_callers_can_send() -> None:
    schema = make_contract().input_schema
    internal = {"type": "string", "x-internal": True, "description": "Set by a hook.", "examples": ["a"]}
    after = {**schema, "properties": {**schema["properties"], "trace": internal}}
    assert compare_contracts(make_contract(), make_contract(input_schema=after)) == ()
