"""Compare the scopes of resources, as the SQL function `deputize.scopes_overlap` does for the locks of runs."""


def scopes_overlap(a: str, b: str) -> bool:
    """Tell whether two scopes overlap. A scope covers what lies below it (a/b covers a/b/c).

    A pattern is compared by its prefix alone: a wait too many is better than one too few.
    """
    if "*" not in a and "*" not in b:
        return a == b or a.startswith(b + "/") or b.startswith(a + "/")
    a, b = a.partition("*")[0], b.partition("*")[0]
    return a.startswith(b) or b.startswith(a)
