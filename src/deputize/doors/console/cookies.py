"""What a browser keeps for us. Nobody but this gateway reads it; no script, no other site and no other host sets it.

A session of somebody in many groups outgrows one cookie, which browsers cut at 4 KB; so it may take several.
"""

from collections.abc import Mapping

from starlette.responses import Response

from deputize.core.errors import SignInFailed

SESSION, BEGUN = "deputize-session", "deputize-sign-in"
# Name and attributes count, too.
_MOST_BYTES = 3800
_MOST_PARTS = 4


def kept(cookies: Mapping[str, str], name: str, *, secure: bool) -> str:
    """What was kept under a name; empty if there is nothing."""
    parts = []
    for place in range(_MOST_PARTS):
        part = cookies.get(_name(name, place, secure))
        if not part:
            break
        parts.append(part)
    return "".join(parts)


def keep(response: Response, name: str, value: str, *, secure: bool, seconds: int) -> None:
    parts = [value[start : start + _MOST_BYTES] for start in range(0, len(value), _MOST_BYTES)]
    if len(parts) > _MOST_PARTS:
        raise SignInFailed(
            "you are in more groups than a browser can keep",
            advice="Have the issuer put only the groups this gateway needs into its ID tokens.",
        )
    for place in range(_MOST_PARTS):
        if place < len(parts):
            _set(response, _name(name, place, secure), parts[place], secure=secure, seconds=seconds)
        else:
            _set(response, _name(name, place, secure), "", secure=secure, seconds=0)


def forget(response: Response, name: str, *, secure: bool) -> None:
    keep(response, name, "", secure=secure, seconds=0)


def _name(name: str, place: int, secure: bool) -> str:
    """`__Host-` makes browsers refuse it from anywhere else; without TLS they would refuse it from us as well."""
    return ("__Host-" if secure else "") + name + (f"-{place}" if place else "")


def _set(response: Response, name: str, value: str, *, secure: bool, seconds: int) -> None:
    # Lax and not strict: people come from a link in a message, and come back from their issuer.
    response.set_cookie(name, value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="lax")
