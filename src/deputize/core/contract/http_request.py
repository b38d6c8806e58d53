"""Declare the HTTP request that a call of a service's operation becomes: where each argument goes."""

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from deputize.core.contract.native_ids import HttpMethod, NativeId
from deputize.core.contract.parts import SecretName, SparsePart
from deputize.core.contract.response_fields import ResponseField

# The media type of the requests of gRPC methods.
GRPC_MEDIA_TYPE: Final = "application/grpc"
# The argument that holds the body of a request.
BODY_ARGUMENT: Final = "body"
# Methods that change nothing, unless an operator says otherwise.
READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
# Headers of responses that hold or request credentials, in lower case. They are never part of a result.
CREDENTIAL_HEADERS: Final = frozenset(
    {"authorization", "proxy-authenticate", "proxy-authorization", "set-cookie", "set-cookie2", "www-authenticate"}
)
# Names by which services take a header, a parameter or a field of a form for the method of the request, normalized.
_METHOD_OVERRIDES: Final = frozenset({"xhttpmethod", "xhttpmethodoverride", "xmethodoverride"})
ParameterStyle = Literal["simple", "form", "spaceDelimited", "pipeDelimited", "deepObject"]
ArgumentName = Annotated[str, StringConstraints(min_length=1, max_length=120)]
HttpHeader = Annotated[str, StringConstraints(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,120}$")]
MediaType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$&^_.+-]{1,80}/[A-Za-z0-9!#$&^_.+-]{1,120}$")]


class HttpParameter(SparsePart):
    """A parameter of the request, and the argument that it takes its value from."""

    argument: ArgumentName
    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    place: Literal["path", "query", "header"]
    style: ParameterStyle
    explode: bool


class HttpCredential(SparsePart):
    """Where the credential goes: a bearer token, `user:password`, or a header, query parameter or cookie by name."""

    place: Literal["bearer", "basic", "header", "query", "cookie"]
    name: NativeId | None = None


class FurtherCredential(HttpCredential):
    """A secret of the tenant that the request has beside its credential, and where it goes."""

    secret: SecretName


class HttpPagination(SparsePart):
    """How a read is continued: by a cursor, a page's number or an offset in `argument`; `limit` is the argument that
    says how many items a page has. It is in `external_mappings` of the contract, where every release can read it.
    """

    style: Literal["cursor", "page", "offset"]
    argument: ArgumentName
    limit: ArgumentName | None = None


class HttpRequest(SparsePart):
    """The request of an operation. `path` has `{name}` for each parameter in it and is relative to the service's URL.
    `idempotency_header` takes the key of the call, if the service recognizes repeats by it. `messages` are the
    definitions of a gRPC method's messages: a descriptor set in base64.
    """

    method: HttpMethod
    path: NativeId
    parameters: Annotated[tuple[HttpParameter, ...], Field(max_length=200)] = ()
    body: MediaType | None = None
    credential: HttpCredential | None = None
    # What the service needs beside the credential.
    further_credentials: Annotated[tuple[FurtherCredential, ...], Field(min_length=1, max_length=3)] | None = None
    idempotency_header: HttpHeader | None = None
    messages: Annotated[str, StringConstraints(min_length=1, max_length=49_152)] | None = None
    # Headers of the response that are part of the result.
    response_headers: Annotated[tuple[HttpHeader, ...], Field(max_length=50)] | None = None
    # Fields of a JSON body that are kept; None keeps all of it.
    response_fields: Annotated[tuple[ResponseField, ...], Field(min_length=1, max_length=100)] | None = None


def normalize_parameter_name(name: str) -> str:
    """Normalize the name of a parameter or a field: services write `page_token`, `pageToken` or `Page-Token`."""
    return name.replace("_", "").replace("-", "").lower()


def is_method_override(name: str) -> bool:
    """Tell whether a service may take the value with this name for the method of the request."""
    return name.lower() == "_method" or normalize_parameter_name(name) in _METHOD_OVERRIDES


def list_credential_names(request: HttpRequest, place: Literal["query", "header"]) -> frozenset[str]:
    """List the names of the credentials in the query or the headers of a request."""
    credentials = (*((request.credential,) if request.credential else ()), *(request.further_credentials or ()))
    names = {"bearer": "Authorization", "basic": "Authorization", "cookie": "Cookie"}
    placed = ((each.place if each.place == "query" else "header", each) for each in credentials)
    return frozenset(names.get(each.place, each.name or "") for where, each in placed if where == place)
