"""Carry the gateway's refusal of a request to the command that sent it."""

from collections.abc import Mapping
from typing import Any


class GatewayRefusal(Exception):
    """Problem document that the gateway answered with, instead of a result."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__(problem.get("title"))
        self.problem = problem

    @property
    def slug(self) -> str:
        """The problem's stable name, such as `tool-not-found`."""
        return str(self.problem.get("error", {}).get("slug", ""))
