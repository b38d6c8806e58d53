"""Build an approval request: what it is bound to, what people are shown, and its row."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import field
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
# How the group key of a request for several steps begins.
UNDO_PLAN_GROUP = "undo "


@frozen
class UndoApproval:
    """What the approval of an undo says beside its call: the steps that it is for, and whose words are sent.

    `shown` are the steps as people see them, `step_digests` those of everything that an approval of each step alone
    would bind, by its journal entry; both are empty if the call is the only step that needs approval. The approval ends
    with the authority of its `requester`, a caller as it is stored.
    """

    requester: str
    source_agents: tuple[str, ...]
    shown: Sequence[Mapping[str, Any]] = ()
    step_digests: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def step_count(self) -> int:
        """How many steps it approves, with the call itself."""
        return 1 + len(self.step_digests)

    def to_json(self) -> dict[str, Any]:
        return {
            "requester": self.requester,
            "source_agents": self.source_agents,
            "step_digests": self.step_digests,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]) -> "UndoApproval":
        return cls(**{**fields, "source_agents": tuple(fields["source_agents"])}, shown=shown)


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

    @property
    def step_count(self) -> int:
        return 1 if self.contents.undo is None else self.contents.undo.step_count

    def build_row(self, keys: KeySet) -> ApprovalRequestRow:
        group_key = f"{self.binding_parts.tool_digest} {self.binding_parts.policy}"
        return ApprovalRequestRow(
            id=self.id,
            binding=self.binding,
            demands=orjson.dumps(serialize_plan(self.plan, step_count=self.step_count)),
            presentation=self.contents.encrypt(keys, self.id),
            preview_digest=self.contents.preview,
            fresh_seconds=self.fresh_seconds,
            chain=list(self.participants),
            tool=self.binding_parts.tool,
            # A plan is like no other request, so that it is decided in no batch.
            group_key=f"{UNDO_PLAN_GROUP}{self.id}" if self.step_count > 1 else group_key,
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
    # The requirements that the policies will not repeat for this call: of hooks, which run once, before the request,
    # and of the other steps of an undo.
    further_demands: tuple[ApprovalRequirement, ...]
    # Set for a call that takes another one back.
    undo: UndoApproval | None = None

    @property
    def bound_preview(self) -> bytes:
        return bind_preview(self.preview, self.undo)

    def encrypt(self, keys: KeySet, approval_id: str) -> bytes:
        fields = {
            "shown": self.presentation,
            "bound": self.binding_digests,
            "preview": self.preview.hex(),
            "guards": self.guards,
            "argument_fingerprints": self.argument_fingerprints,
            "hooked": serialize_requirements(self.further_demands),
            **({} if self.undo is None else {"undo": self.undo.to_json()}),
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
            further_demands=tuple(parse_requirement(each) for each in fields["hooked"]),
            undo=UndoApproval.from_json(fields["undo"], fields["shown"].get("undo_steps", ()))
            if "undo" in fields
            else None,
        )


def build_approval_request(
    runtime: Runtime,
    authorized: Authorized,
    call_id: str,
    call_preview: PreviewResult,
    expires_at: datetime,
    keys: KeySet,
    undo: UndoApproval | None,
    step_demands: tuple[ApprovalRequirement, ...] = (),
) -> ApprovalRequest:
    hook_demands = tuple(
        demand for opinion in authorized.validated.hook_effects.permissions for demand in opinion.requirements
    )  # fmt: skip
    binding_parts = collect_binding_parts(
        runtime, authorized, call_id, bind_preview(call_preview.digest, undo), call_preview.code_digest, expires_at
    )
    contents = ApprovalContents(
        presentation=_build_presentation(runtime, authorized, call_preview, undo),
        binding_digests=binding_parts.compute_part_digests(),
        preview=call_preview.digest,
        guards=call_preview.guards,
        argument_fingerprints={
            name: compute_fingerprint(keys.fingerprint_key, f"argument {name}", canonicalize(value)).hex()
            for name, value in authorized.validated.call_input.items()
        },
        further_demands=hook_demands + step_demands,
        undo=undo,
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


def bind_preview(preview: bytes, undo: UndoApproval | None) -> bytes:
    """Bind the further steps of an undo together with the preview: both are what people saw."""
    if undo is None or not undo.step_digests:
        return preview
    return hashlib.sha256(preview + canonicalize(undo.step_digests)).digest()


def plan_approval(runtime: Runtime, authorized: Authorized) -> ApprovalPlan:
    return build_approval_plan(authorized.decision.requirements, runtime.settings.approvals)


def _build_presentation(
    runtime: Runtime, authorized: Authorized, call_preview: PreviewResult, undo: UndoApproval | None
) -> dict[str, Any]:
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
        # Those of each step that is approved, for clients that show nothing else of them.
        "arguments": get_redaction_plan(validated.tool, "input").apply(validated.call_input)[0]
        if undo is None or not undo.shown
        else {
            f"{number} {each['tool']}": each["arguments"]
            for number, each in enumerate(undo.shown, 1)
            if each["decision"] == "ask"
        },
        **(
            {}
            if validated.input_round is None
            else {"input_responses": redact_responses(validated.input_round.responses)}
        ),
        **describe_suspicions(validated),
        "preview": call_preview.document,
        "rules": describe_rules(authorized.decision.requirements),
        **({} if undo is None or not undo.shown else {"undo_steps": undo.shown}),
    }


def describe_rules(demands: Sequence[ApprovalRequirement]) -> list[dict[str, str]]:
    return [{"id": each.rule, "where": each.where, "reason": each.reason} for each in demands]


def describe_suspicions(validated: Validated) -> dict[str, Any]:
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
