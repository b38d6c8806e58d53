"""Read which credential an operation needs, and where in its request the credential goes."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from deputize.catalog.importers.openapi.document import (
    DocumentOperation,
    Json,
    OpenApiDocument,
    UnsupportedOperation,
)
from deputize.core.value_types import frozen

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,120}")
_OWN_HEADERS: Final = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection"})
_OPENID_WELL_KNOWN: Final = "/.well-known/openid-configuration"
# Places that the settings may name for a document that declares no security at all.
_BUILT_IN: Final = ("bearer", "basic")


@frozen
class OperationSecurity:
    """The schemes that an operation names, and the place of its credential; None if it needs none."""

    scheme_names: tuple[str, ...] = ()
    credential: Json | None = None
    further_credentials: tuple[Json, ...] = ()


def list_schemes(document: OpenApiDocument) -> dict[str, Json | None]:
    """List the document's security schemes with the place of their credential; None if it is not supported."""
    schemes = _get_schemes(document)
    return {str(name): _find_place(_resolve_scheme(document, scheme)) for name, scheme in schemes.items()}


def choose_schemes(document: OpenApiDocument, operations: list[DocumentOperation]) -> tuple[str, ...]:
    """Choose the supported scheme that most operations accept alone, else those that most accept together; none if no
    operation needs one.
    """
    places = list_schemes(document)
    counts = Counter(
        names
        for operation in operations
        for names in _list_alternatives(document, operation)
        if names and all(places.get(name) is not None for name in names)
    )
    return max(counts, key=lambda names: (len(names) == 1, counts[names]), default=())


def propose_link(document: OpenApiDocument, operations: list[DocumentOperation], scheme: str | None) -> Json | None:
    """Propose the settings of a service whose users sign in with accounts of their own; None for other schemes."""
    declaration = None if scheme is None else _resolve_scheme(document, _get_schemes(document).get(scheme))
    if scheme is None or not isinstance(declaration, dict):
        return None
    flows, discovery_url = declaration.get("flows"), declaration.get("openIdConnectUrl")
    has_code_flow = isinstance(flows, dict) and "authorizationCode" in flows
    if not has_code_flow and declaration.get("type") != "openIdConnect":
        return None
    scopes = {
        str(scope): None
        for operation in operations
        for each in _list_requirements(document, operation)
        if isinstance(each.get(scheme), list)
        for scope in each[scheme]
    }
    is_issuer = isinstance(discovery_url, str) and discovery_url.endswith(_OPENID_WELL_KNOWN)
    return {
        **({"issuer": str(discovery_url).removesuffix(_OPENID_WELL_KNOWN)} if is_issuer else {}),
        **({"link_scopes": list(scopes)} if scopes else {}),
    }


def read_security(
    document: OpenApiDocument,
    operation: DocumentOperation,
    scheme: str | None,
    further_secrets: Mapping[str, str] | None = None,
) -> OperationSecurity:
    """Read the security of an operation for the scheme that the service is set up with, and for those of its further
    secrets.
    """
    if not isinstance(_get_requirements(document, operation), list):
        raise UnsupportedOperation("its security is not a list")
    alternatives = _list_alternatives(document, operation)
    names = tuple(dict.fromkeys(name for each in alternatives for name in each))
    secrets = further_secrets or {}
    usable = [each for each in alternatives if scheme in each and {*each} <= {scheme, *secrets}]
    if scheme is not None and usable:
        chosen, places = min(usable, key=len), list_schemes(document)
        for name in chosen:
            if places.get(name) is None:
                raise UnsupportedOperation(f"its security scheme {name[:80]} is not supported")
        headers = [_get_header(places[name] or {}) for name in chosen]
        if len({*headers}) < len(headers):
            raise UnsupportedOperation("it needs several credentials in the same header, which is not supported")
        others = tuple({**(places[name] or {}), "secret": secrets[name]} for name in chosen if name != scheme)
        return OperationSecurity(scheme_names=names, credential=places[scheme], further_credentials=others)
    if scheme in _BUILT_IN and not list_schemes(document):
        return OperationSecurity(credential={"place": scheme})
    if not alternatives or () in alternatives:
        return OperationSecurity(scheme_names=names)
    scheme_text = " and ".join(alternatives[0])[:120]
    if len(alternatives[0]) > 1 and not any(len(each) == 1 for each in alternatives):
        raise UnsupportedOperation(
            f"it needs several credentials at once ({scheme_text}): set security to one, and name the secrets of the "
            "others in further_secrets"
        )
    actual = "without a credential" if scheme is None else f"with {scheme[:80]}"
    raise UnsupportedOperation(f"it needs the security scheme {scheme_text}, but the service is set up {actual}")


def _list_alternatives(document: OpenApiDocument, operation: DocumentOperation) -> list[tuple[str, ...]]:
    return [tuple(str(name) for name in each) for each in _list_requirements(document, operation)]


def _list_requirements(document: OpenApiDocument, operation: DocumentOperation) -> list[Json]:
    requirements = _get_requirements(document, operation)
    return [each for each in requirements if isinstance(each, dict)] if isinstance(requirements, list) else []


def _get_requirements(document: OpenApiDocument, operation: DocumentOperation) -> Any:
    return operation.declaration.get("security", document.content.get("security", []))


def _get_header(place: Json) -> tuple[str, str]:
    """Return what a credential occupies: all cookies are one header."""
    if place["place"] in ("bearer", "basic"):
        return "header", "authorization"
    return place["place"], "" if place["place"] == "cookie" else place["name"].lower()


def _get_schemes(document: OpenApiDocument) -> Json:
    components = document.content.get("components")
    schemes = components.get("securitySchemes") if isinstance(components, dict) else None
    return schemes if isinstance(schemes, dict) else {}


def _resolve_scheme(document: OpenApiDocument, scheme: Any) -> Any:
    try:
        return document.resolve(scheme)
    except UnsupportedOperation:
        return None


def _find_place(scheme: Any) -> Json | None:
    if not isinstance(scheme, dict):
        return None
    kind, name = scheme.get("type"), scheme.get("name")
    is_named = isinstance(name, str) and _NAME.fullmatch(name) is not None and name.lower() not in _OWN_HEADERS
    if kind == "apiKey" and is_named and scheme.get("in") in ("header", "query", "cookie"):
        return {"place": scheme["in"], "name": name}
    if kind == "http" and str(scheme.get("scheme")).lower() in ("basic", "bearer"):
        return {"place": str(scheme["scheme"]).lower()}
    return {"place": "bearer"} if kind in ("oauth2", "openIdConnect") else None
