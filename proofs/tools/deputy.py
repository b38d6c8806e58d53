"""What the confused deputy is tried with: tools that act upstream with a caller's token, a secret, or nothing."""

import os
from typing import Annotated, Any

import httpx2
from pydantic import BaseModel, ConfigDict, Field

from deputize import ToolContext, flow, tool

AUDIENCE = "https://upstream.proof"
SECRET = "upstream/key"
_upstream = httpx2.AsyncClient(
    base_url=os.environ.get("PROOF_UPSTREAM", "http://127.0.0.1:1"),
    trust_env=False,
    timeout=20.0,
    limits=httpx2.Limits(max_connections=100, keepalive_expiry=2.0),
)

Word = Annotated[str, Field(description="Anything", examples=["a"], max_length=200)]


class UpstreamIdentity(BaseModel):
    model_config = ConfigDict(extra="forbid")

    user: Annotated[str, Field(description="Whom the upstream took the caller for")]
    agent: Annotated[str, Field(description="Who acts for them, nearest first, as the upstream was told")]


class WordResult(BaseModel):
    model_config = ConfigDict(extra="forbid")

    word: Annotated[str, Field(description="What was given")]


@tool(effects="read", namespace="deputy", version="1.0.0", credential="delegated", audience=AUDIENCE)
async def whoami_upstream(word: Word, context: ToolContext) -> UpstreamIdentity:
    """Ask the upstream whom it takes us for."""
    assert context.credential is not None
    who = await _post_upstream("/whoami", word, context, {"authorization": f"Bearer {context.credential.reveal()}"})
    actor = who.get("act", {})
    return UpstreamIdentity(user=who["sub"], agent=actor.get("sub", ""))


@tool(effects="read", namespace="deputy", version="1.0.0", credential="vault", secret=SECRET)
async def keyed(word: Word, context: ToolContext) -> WordResult:
    """Use the tenant's own key upstream."""
    assert context.credential is not None
    await _post_upstream("/keyed", word, context, {"x-api-key": context.credential.reveal()})
    return WordResult(word=word)


@tool(
    effects="write",
    namespace="deputy",
    version="1.0.0",
    undo="deputy.look",
    resources=["create words/{word}"],
    scopes=["proof:write"],
    idempotency="cannot",
)
async def act(word: Word, context: ToolContext) -> WordResult:
    """Have an effect upstream."""
    await _post_upstream("/effect", word, context, {})
    return WordResult(word=word)


@tool(
    effects="write",
    namespace="deputy",
    version="1.0.0",
    undo="deputy.look",
    resources=["create words/{word}"],
    scopes=["proof:write"],
    idempotency="cannot",
)
async def plead(word: Word, context: ToolContext) -> WordResult:
    """Have an effect upstream, once a person has said yes to it."""
    await _post_upstream("/effect", word, context, {})
    return WordResult(word=word)


@tool(
    effects="write",
    namespace="deputy",
    version="1.0.0",
    undo="deputy.look",
    resources=["create words/{word}"],
    scopes=["proof:write"],
    idempotency="deduplicates",
    checkpoints={"enabled": True},
    timeout=1.0,
)
async def slip(word: Word, context: ToolContext) -> WordResult:
    """Get half way, and then to an end that no one can know."""
    await context.save({"word": word}, name="half")
    raise ConnectionError("gone")


@tool(effects="read", namespace="deputy", version="1.0.0")
async def look(word: Word) -> WordResult:
    """Give the word back and change nothing."""
    return WordResult(word=word)


walk = flow(
    "deputy.walk",
    version="1.0.0",
    description="Give the word back in a step.",
    steps=[{"name": "look", "tool": "deputy.look", "bind": {"word": "/input/word"}}],
    effects="read",
    auth={"scopes": []},
    timeout=60,
    input_schema={
        "type": "object",
        "additionalProperties": False,
        "required": ["word"],
        "properties": {"word": {"type": "string", "description": "Anything", "examples": ["a"], "maxLength": 200}},
    },
    output_schema={"type": "object"},
)


@tool(effects="read", namespace="deputy", version="1.0.0")
async def blurt(word: Word) -> WordResult:
    """Say the word aloud in the gateway's log, as a careless tool would."""
    print(word, flush=True)
    return WordResult(word=word)


async def _post_upstream(path: str, word: str, context: ToolContext, headers: dict[str, str]) -> dict[str, Any]:
    answer = await _upstream.post(path, json={"word": word}, headers={"x-call": context.call_id, **headers})
    payload: dict[str, Any] = answer.raise_for_status().json()
    return payload
