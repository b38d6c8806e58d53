"""Compare the scopes of resources, as the SQL function `deputize.scopes_overlap` does, and bound their length."""

from typing import Final

# Scopes contain callers' input and are indexed. Longer ones are cut, and count as those that start alike.
_MAX_SCOPE_LENGTH: Final = 255


def scopes_overlap(a: str, b: str) -> bool:
    """Tell whether two scopes overlap. A scope covers what lies below it (a/b covers a/b/c).

    A pattern is compared by its prefix alone: a wait too many is better than one too few.
    """
    if "*" not in a and "*" not in b:
        return a == b or a.startswith(b + "/") or b.startswith(a + "/")
    a, b = a.partition("*")[0], b.partition("*")[0]
    return a.startswith(b) or b.startswith(a)


def truncate_scope(scope: str) -> str:
    """Cut a long scope to a pattern that covers it."""
    return scope if len(scope) <= _MAX_SCOPE_LENGTH else scope[:_MAX_SCOPE_LENGTH] + "*"
