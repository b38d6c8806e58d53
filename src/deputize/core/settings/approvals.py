"""Define who approves calls, how they are notified and where they decide: `[approvals]` and `[console]`."""

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from deputize.core.caller import ADMIN_SCOPE, AUDIT_SCOPE, OPERATE_SCOPE
from deputize.core.settings.base import SettingsSection

ConsoleRole = Literal["auditor", "operator", "administrator"]


class NotificationTarget(SettingsSection):
    """Where one group of approvers gets its notifications."""

    group: str = Field(min_length=1, max_length=255, description="Name of the group, as approvals use it.")
    url: SecretStr = Field(description="An apprise URL, or the https URL of a signed webhook.")
    tenants: str = Field("*", description="Tenants whose group this is, as a glob.")


class ApprovalSettings(SettingsSection):
    """Approvers, their deadlines and their notifications."""

    groups: tuple[Annotated[str, Field(min_length=1, max_length=255)], ...] = Field(
        ("approvers",),
        min_length=1,
        max_length=10,
        description="Groups that approve if a rule names none: the first at once, each further one a step later.",
    )
    fresh_seconds: int = Field(
        900, ge=30, le=86_400, description="Longest time since an approver signed in (`auth_time`)."
    )
    step_seconds: tuple[Annotated[int, Field(ge=1, le=30 * 86_400)], ...] = Field(
        (3600, 14_400, 86_400),
        min_length=1,
        max_length=10,
        description="Seconds after which a request escalates to the next group. After the last step it is denied.",
    )
    remind_seconds: int = Field(
        1800, ge=60, le=30 * 86_400, description="Pause between reminders of requests that are still open."
    )
    digest_over: int = Field(
        5, ge=1, le=1000, description="If more requests than this wait for a group, it gets one digest of them all."
    )
    console_url: str | None = Field(
        None,
        description="Public URL of the console, for links in notifications. Default: `identity.public_url`.",
    )
    notify: tuple[NotificationTarget, ...] = Field((), description="Where groups are notified.")

    @field_validator("step_seconds")
    @classmethod
    def _check_steps_increase(cls, steps: tuple[int, ...]) -> tuple[int, ...]:
        if any(after <= before for before, after in pairwise(steps)):
            raise ValueError("step_seconds must increase from step to step")
        return steps


class ConsoleGroup(SettingsSection):
    """What the people of one group may see and do in the console, besides what concerns their own calls."""

    group: str = Field(min_length=1, max_length=255, description="Name of the group, as ID tokens have it.")
    role: ConsoleRole | None = Field(
        None,
        description="An auditor sees the tenant and changes nothing; an operator also cancels calls, sets kill "
        "switches and resolves human tasks; an administrator does everything. Unset, the group has no role.",
    )
    scopes: tuple[Annotated[str, Field(min_length=1, max_length=120, pattern=r"^\S+$")], ...] = Field(
        (),
        description="Scopes of tools, without spaces, with which its people retry and undo calls there; also "
        "`deputize:undo`, which operators and administrators have.",
    )
    tenants: str = Field("*", description="Tenants whose group this is, as a glob.")

    @model_validator(mode="after")
    def _check_scopes(self) -> Self:
        if not self.role and not self.scopes:
            raise ValueError("name a role or scopes: without them the group gives nothing")
        if roles := sorted({ADMIN_SCOPE, OPERATE_SCOPE, AUDIT_SCOPE}.intersection(self.scopes)):
            raise ValueError(f"{', '.join(roles)} comes with a role: set role instead")
        return self


class ConsoleSettings(SettingsSection):
    """Web pages where people see and decide approval requests. In development, a code from the terminal opens them."""

    issuer: str | None = Field(
        None,
        description="Where people sign in: one of `identity.issuers` with `human = true`. Default, with `client_id`: "
        "the only one of them. Unset, the console is off.",
    )
    client_id: str | None = Field(None, description="OAuth client of this gateway at that issuer.")
    client_secret_file: Path | None = Field(None, description="File with the client's secret, if it has one.")
    scopes: tuple[str, ...] = Field(
        ("openid",), description="Scopes requested at sign-in; some issuers send groups only for an extra scope."
    )
    session_seconds: int = Field(900, ge=60, le=43_200, description="How long people stay signed in.")
    groups: tuple[ConsoleGroup, ...] = Field(
        (),
        description="What each group may see and do. If any is set, groups alone give a role, and no claim of the ID "
        "token does.",
    )
