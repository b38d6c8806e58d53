from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CallRequest(_message.Message):
    __slots__ = ("tool", "arguments", "version", "session", "step", "dry_run", "mode", "priority", "may_continue", "callback", "client_capabilities", "input_responses", "did_not_happen", "native_call_id", "parent_call_id", "flow_id", "max_age_seconds")
    TOOL_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    MAY_CONTINUE_FIELD_NUMBER: _ClassVar[int]
    CALLBACK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    INPUT_RESPONSES_FIELD_NUMBER: _ClassVar[int]
    DID_NOT_HAPPEN_FIELD_NUMBER: _ClassVar[int]
    NATIVE_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    FLOW_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    tool: str
    arguments: bytes
    version: str
    session: str
    step: str
    dry_run: bool
    mode: str
    priority: int
    may_continue: bool
    callback: Callback
    client_capabilities: _containers.RepeatedScalarFieldContainer[str]
    input_responses: InputResponses
    did_not_happen: bool
    native_call_id: str
    parent_call_id: str
    flow_id: str
    max_age_seconds: int
    def __init__(self, tool: _Optional[str] = ..., arguments: _Optional[bytes] = ..., version: _Optional[str] = ..., session: _Optional[str] = ..., step: _Optional[str] = ..., dry_run: _Optional[bool] = ..., mode: _Optional[str] = ..., priority: _Optional[int] = ..., may_continue: _Optional[bool] = ..., callback: _Optional[_Union[Callback, _Mapping]] = ..., client_capabilities: _Optional[_Iterable[str]] = ..., input_responses: _Optional[_Union[InputResponses, _Mapping]] = ..., did_not_happen: _Optional[bool] = ..., native_call_id: _Optional[str] = ..., parent_call_id: _Optional[str] = ..., flow_id: _Optional[str] = ..., max_age_seconds: _Optional[int] = ...) -> None: ...

class Callback(_message.Message):
    __slots__ = ("url", "secret", "include_result")
    URL_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_RESULT_FIELD_NUMBER: _ClassVar[int]
    url: str
    secret: str
    include_result: bool
    def __init__(self, url: _Optional[str] = ..., secret: _Optional[str] = ..., include_result: _Optional[bool] = ...) -> None: ...

class InputResponses(_message.Message):
    __slots__ = ("round_token", "responses")
    ROUND_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    round_token: str
    responses: bytes
    def __init__(self, round_token: _Optional[str] = ..., responses: _Optional[bytes] = ...) -> None: ...

class CallResponse(_message.Message):
    __slots__ = ("call_id", "state", "envelope", "is_accepted", "retry_after_ms", "is_replay", "is_joined")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    IS_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    IS_REPLAY_FIELD_NUMBER: _ClassVar[int]
    IS_JOINED_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    state: str
    envelope: bytes
    is_accepted: bool
    retry_after_ms: int
    is_replay: bool
    is_joined: bool
    def __init__(self, call_id: _Optional[str] = ..., state: _Optional[str] = ..., envelope: _Optional[bytes] = ..., is_accepted: _Optional[bool] = ..., retry_after_ms: _Optional[int] = ..., is_replay: _Optional[bool] = ..., is_joined: _Optional[bool] = ...) -> None: ...

class CallBatchRequest(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: bytes
    def __init__(self, batch: _Optional[bytes] = ...) -> None: ...

class CallBatchResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: bytes
    def __init__(self, results: _Optional[bytes] = ...) -> None: ...

class CallStep(_message.Message):
    __slots__ = ("progress", "outcome")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    progress: Progress
    outcome: CallResponse
    def __init__(self, progress: _Optional[_Union[Progress, _Mapping]] = ..., outcome: _Optional[_Union[CallResponse, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("current", "total", "message", "partial")
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    current: float
    total: float
    message: str
    partial: bytes
    def __init__(self, current: _Optional[float] = ..., total: _Optional[float] = ..., message: _Optional[str] = ..., partial: _Optional[bytes] = ...) -> None: ...

class GetCallRequest(_message.Message):
    __slots__ = ("call_id",)
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    def __init__(self, call_id: _Optional[str] = ...) -> None: ...

class GetCallResponse(_message.Message):
    __slots__ = ("envelope", "poll_after_ms")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    POLL_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    envelope: bytes
    poll_after_ms: int
    def __init__(self, envelope: _Optional[bytes] = ..., poll_after_ms: _Optional[int] = ...) -> None: ...

class FollowCallRequest(_message.Message):
    __slots__ = ("call_id", "after")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    after: str
    def __init__(self, call_id: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class CallEvent(_message.Message):
    __slots__ = ("id", "event", "data")
    ID_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    id: str
    event: str
    data: bytes
    def __init__(self, id: _Optional[str] = ..., event: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class CancelCallRequest(_message.Message):
    __slots__ = ("call_id",)
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    def __init__(self, call_id: _Optional[str] = ...) -> None: ...

class CancelCallResponse(_message.Message):
    __slots__ = ("call_id", "state", "cancel", "detail")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    state: str
    cancel: str
    detail: str
    def __init__(self, call_id: _Optional[str] = ..., state: _Optional[str] = ..., cancel: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class ListToolsRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListToolsResponse(_message.Message):
    __slots__ = ("tools", "next_after")
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    NEXT_AFTER_FIELD_NUMBER: _ClassVar[int]
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    next_after: str
    def __init__(self, tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., next_after: _Optional[str] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "version", "description", "summary")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    description: str
    summary: bytes
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., description: _Optional[str] = ..., summary: _Optional[bytes] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("code", "number", "slug", "is_retryable", "retry_after_ms", "message", "advice", "rules", "call_id", "state", "trace_id", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    SLUG_FIELD_NUMBER: _ClassVar[int]
    IS_RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: str
    number: str
    slug: str
    is_retryable: bool
    retry_after_ms: int
    message: str
    advice: str
    rules: _containers.RepeatedScalarFieldContainer[str]
    call_id: str
    state: str
    trace_id: str
    details: bytes
    def __init__(self, code: _Optional[str] = ..., number: _Optional[str] = ..., slug: _Optional[str] = ..., is_retryable: _Optional[bool] = ..., retry_after_ms: _Optional[int] = ..., message: _Optional[str] = ..., advice: _Optional[str] = ..., rules: _Optional[_Iterable[str]] = ..., call_id: _Optional[str] = ..., state: _Optional[str] = ..., trace_id: _Optional[str] = ..., details: _Optional[bytes] = ...) -> None: ...
