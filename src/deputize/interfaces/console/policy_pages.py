"""Show administrators the active policies: each rule with its place and terms, and the files."""

from starlette.requests import Request
from starlette.responses import Response

from deputize.core.display_text import to_display_text
from deputize.core.settings.urls import POLICIES_PAGE_PATH
from deputize.interfaces.console.pages import ConsolePages
from deputize.interfaces.console.view import build_badge, build_time_view, format_line, to_display_block
from deputize.operations.gateway import ConsoleSession

_MAX_RULES = 500
_BADGES = {
    "permit": ("✓", "allows", "good"),
    "ask": ("●", "asks", "pending"),
    "forbid": ("⊘", "denies", "bad"),
}


class PolicyPages(ConsolePages):
    """The handler of /console/policies."""

    section_path = POLICIES_PAGE_PATH

    async def show_policies(self, request: Request, session: ConsoleSession) -> Response:
        gateway = self._get_gateway()
        policies = await gateway.explanations.show_active_policies(session.caller)
        rules = [
            {
                "id": format_line(each["id"]),
                "where": format_line(each["where"]),
                "reason": to_display_text(str(each["reason"] or ""), 600),
                "effect": build_badge(_BADGES, "ask" if each["requires_approval"] else each["effect"]),
                "groups": [format_line(group) for group in (each["approval_terms"] or {}).get("groups", ())],
            }
            for each in policies["rules"][:_MAX_RULES]
        ]
        return self._render_page(
            "policies.html",
            session,
            has_script=True,
            rules=rules,
            more_rules=len(policies["rules"]) - len(rules),
            files=[
                {"path": format_line(each["path"]), "text": to_display_block(each["text"])}
                for each in policies["files"][:50]
            ],
            digest=format_line(policies["digest"]),
            is_default=policies["default"],
            put_by=format_line(policies["put_by"] or ""),
            put_at=build_time_view(policies["put_at"], now=gateway.clock.now()),
            proposals=len(policies["proposals"]),
        )
