"""Build an approval request: what it is bound to, what people are shown, and its row."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson

from deputize.core.canonical import canonicalize, compute_fingerprint
from deputize.core.decision import ApprovalRequirement
from deputize.core.injection.suspicions import SUSPICION_NUMBER
from deputize.core.value_types import frozen
from deputize.govern.approvals.binding import BindingParts, compute_binding
from deputize.govern.approvals.requirements import (
    ApprovalPlan,
    build_approval_plan,
    parse_requirement,
    serialize_plan,
    serialize_requirements,
)
from deputize.lifecycle.phases import Authorized, Validated
from deputize.lifecycle.preview.preview import PreviewResult
from deputize.lifecycle.recording.redaction import get_redaction_plan, redact_responses
from deputize.lifecycle.runtime import Runtime
from deputize.store.commit_rows import ApprovalRequestRow
from deputize.store.keys import KeySet

_SEAL_PURPOSE = "approval"


@frozen
class ApprovalRequest:
    """A new approval request for one exact call."""

    id: str
    plan: ApprovalPlan
    binding_parts: BindingParts
    participants: tuple[str, ...]
    binding: bytes
    contents: "ApprovalContents"
    fresh_seconds: int | None

    def build_row(self, keys: KeySet) -> ApprovalRequestRow:
        return ApprovalRequestRow(
            id=self.id,
            binding=self.binding,
            demands=orjson.dumps(serialize_plan(self.plan)),
            presentation=self.contents.encrypt(keys, self.id),
            preview_digest=self.contents.preview,
            fresh_seconds=self.fresh_seconds,
            chain=list(self.participants),
            tool=self.binding_parts.tool,
            group_key=f"{self.binding_parts.tool_digest} {self.binding_parts.policy}",
            groups=sorted(self.plan.get_groups(0)),
            levels=[float(each) for each in self.plan.levels],
            expires_at=self.binding_parts.expires_at,
        )


@frozen
class ApprovalContents:
    """The encrypted part of an approval request: what people are shown, and what is passed to the effect."""

    presentation: dict[str, Any]
    binding_digests: dict[str, str]
    preview: bytes
    guards: Mapping[str, Any]
    # Keyed digests of the arguments as they are, because the presentation shows secrets redacted. None in requests
    # that an earlier release opened.
    argument_fingerprints: Mapping[str, str] | None
    # The requirements of hooks: hooks run once, before the request, and not again.
    hook_demands: tuple[ApprovalRequirement, ...]

    def encrypt(self, keys: KeySet, approval_id: str) -> bytes:
        fields = {
            "shown": self.presentation,
            "bound": self.binding_digests,
            "preview": self.preview.hex(),
            "guards": self.guards,
            "argument_fingerprints": self.argument_fingerprints,
            "hooked": serialize_requirements(self.hook_demands),
        }
        return keys.seal(approval_id, _SEAL_PURPOSE, orjson.dumps(fields))

    @classmethod
    def decrypt(cls, keys: KeySet, approval_id: str, ciphertext: bytes) -> "ApprovalContents":
        fields = orjson.loads(keys.unseal(approval_id, _SEAL_PURPOSE, ciphertext))
        return cls(
            presentation=fields["shown"],
            binding_digests=fields["bound"],
            preview=bytes.fromhex(fields["preview"]),
            guards=fields["guards"],
            argument_fingerprints=fields.get("argument_fingerprints"),
            hook_demands=tuple(parse_requirement(each) for each in fields["hooked"]),
        )


def build_approval_request(
    runtime: Runtime,
    authorized: Authorized,
    call_id: str,
    call_preview: PreviewResult,
    expires_at: datetime,
    keys: KeySet,
) -> ApprovalRequest:
    hook_demands = tuple(
        demand for opinion in authorized.validated.hook_effects.permissions for demand in opinion.requirements
    )  # fmt: skip
    binding_parts = collect_binding_parts(
        runtime, authorized, call_id, call_preview.digest, call_preview.code_digest, expires_at
    )
    contents = ApprovalContents(
        presentation=_build_presentation(runtime, authorized, call_preview),
        binding_digests=binding_parts.compute_part_digests(),
        preview=call_preview.digest,
        guards=call_preview.guards,
        argument_fingerprints={
            name: compute_fingerprint(keys.fingerprint_key, f"argument {name}", canonicalize(value)).hex()
            for name, value in authorized.validated.call_input.items()
        },
        hook_demands=hook_demands,
    )
    return ApprovalRequest(
        id=runtime.clock.new_id(),
        plan=plan_approval(runtime, authorized),
        binding_parts=binding_parts,
        participants=authorized.call.caller.participants,
        binding=compute_binding(keys.fingerprint_key, binding_parts),
        contents=contents,
        fresh_seconds=call_preview.fresh_seconds,
    )


def plan_approval(runtime: Runtime, authorized: Authorized) -> ApprovalPlan:
    return build_approval_plan(authorized.decision.requirements, runtime.settings.approvals)


def _build_presentation(runtime: Runtime, authorized: Authorized, call_preview: PreviewResult) -> dict[str, Any]:
    validated = authorized.validated
    contract, caller = validated.contract, validated.call.caller
    return {
        "tool": {
            "name": contract.full_name,
            "version": contract.version,
            "digest": validated.tool.digest,
            "code_digest": call_preview.code_digest,
            "title": contract.title,
            "description": contract.description,
        },
        "effects": contract.effects,
        "undo": contract.undo,
        "for_user": caller.user,
        "agents": caller.agents,
        "task": caller.task,
        "session": validated.call.session,
        "environment": runtime.settings.environment,
        "arguments": get_redaction_plan(validated.tool, "input").apply(validated.call_input)[0],
        **(
            {}
            if validated.input_round is None
            else {"input_responses": redact_responses(validated.input_round.responses)}
        ),
        **_describe_suspicions(validated),
        "preview": call_preview.document,
        "rules": [
            {"id": demand.rule, "where": demand.where, "reason": demand.reason}
            for demand in authorized.decision.requirements
        ],
    }


def _describe_suspicions(validated: Validated) -> dict[str, Any]:
    """Describe what looks like an injection attempt in the arguments, if anything does."""
    if not validated.suspicions:
        return {}
    return {
        "suspicions": [
            {"number": SUSPICION_NUMBER, "kind": each.kind, "path": each.path, "text": each.describe()}
            for each in validated.suspicions
        ]
    }


def _encode_input(validated: Validated) -> bytes:
    """Encode the tool's input, with the input responses for its server if the call continues another."""
    input_round = validated.input_round
    if input_round is None:
        return canonicalize(validated.call_input)
    return canonicalize(
        {
            "input": validated.call_input,
            "input_responses": input_round.responses,
            "continues": input_round.continued_call_id,
        }
    )


def collect_binding_parts(
    runtime: Runtime, authorized: Authorized, call_id: str, preview: bytes, code_digest: str, expires_at: datetime
) -> BindingParts:
    """Collect everything that must not change between what people saw and what is executed."""
    validated = authorized.validated
    contract, caller = validated.contract, validated.call.caller
    return BindingParts(
        tenant=caller.tenant,
        call=call_id,
        chain=caller.subjects,
        issuer=caller.issuer,
        grants=caller.grants,
        standing=caller.decision_cache_key,
        tool=contract.full_name,
        tool_digest=validated.tool.digest,
        code=code_digest,
        input=_encode_input(validated),
        account=(contract.auth.credential, contract.auth.secret or "", contract.auth.audience or ""),
        environment=runtime.settings.environment,
        preview=preview,
        policy=authorized.decision.policy_digest,
        demands=orjson.dumps(serialize_requirements(authorized.decision.requirements)),
        expires_at=expires_at,
    )
