"""Count words, in the gateway's own process."""

from typing import Annotated

from pydantic import BaseModel, Field

from deputize import tool


class WordCount(BaseModel):
    words: Annotated[int, Field(description="How many there are")]


@tool(effects="read", namespace="words", version="1.0.0")
async def count(text: Annotated[str, Field(description="A text", examples=["one two"])]) -> WordCount:
    """Count the words of a text."""
    return WordCount(words=len(text.split()))
