"""Read and set the console's cookies. Only this gateway reads them; no script, other site or other host can set them.

Browsers cut a cookie at 4 KB. The session of a user in many groups is longer, so it is split over several cookies.
"""

from collections.abc import Mapping

from starlette.responses import Response

from deputize.core.errors import SignInFailed

SESSION, SIGN_IN = "deputize-session", "deputize-sign-in"
# The name and attributes count towards the 4 KB too.
_MAX_BYTES = 3800
_MAX_PARTS = 4


def read_cookie(cookies: Mapping[str, str], name: str, *, secure: bool) -> str:
    """Read a value, joining its parts; return an empty text if there is none."""
    parts = []
    for index in range(_MAX_PARTS):
        part = cookies.get(_build_name(name, index, secure))
        if not part:
            break
        parts.append(part)
    return "".join(parts)


def set_cookie(response: Response, name: str, value: str, *, secure: bool, seconds: int) -> None:
    """Set a value, in parts if needed, and delete parts that an earlier, longer value left."""
    parts = [value[start : start + _MAX_BYTES] for start in range(0, len(value), _MAX_BYTES)]
    if len(parts) > _MAX_PARTS:
        raise SignInFailed(
            "your session does not fit into cookies, because you are in too many groups",
            advice="Configure the issuer to put only the groups that this gateway needs into its ID tokens.",
        )
    for index in range(_MAX_PARTS):
        if index < len(parts):
            _set_part(response, _build_name(name, index, secure), parts[index], secure=secure, seconds=seconds)
        else:
            _set_part(response, _build_name(name, index, secure), "", secure=secure, seconds=0)


def delete_cookie(response: Response, name: str, *, secure: bool) -> None:
    """Delete every part of a value."""
    set_cookie(response, name, "", secure=secure, seconds=0)


def _build_name(name: str, index: int, secure: bool) -> str:
    """Name one part. With `__Host-`, which needs TLS, browsers refuse it from any other host."""
    return ("__Host-" if secure else "") + name + (f"-{index}" if index else "")


def _set_part(response: Response, name: str, value: str, *, secure: bool, seconds: int) -> None:
    # Lax, not strict: people arrive from links in messages, and return from their issuer.
    response.set_cookie(name, value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="lax")
