"""States as long tools have them: what they fetched so far, where they are, what they still have to do."""

import random
from collections.abc import Iterator
from typing import Any

_TEXT = "the report shows that revenue grew while costs of the second quarter stayed where they were last year"


def crawl_states(dice: random.Random, steps: int) -> Iterator[dict[str, Any]]:
    """A list that grows, a queue that moves, counters."""
    fetched: list[dict[str, Any]] = []
    frontier = [_random_url(dice) for _ in range(50)]
    for step in range(steps):
        fetched += [
            {
                "url": _random_url(dice),
                "status": dice.choice([200, 200, 404]),
                "bytes": dice.randrange(200, 90_000),
                "etag": f"{dice.getrandbits(64):016x}",
            }
            for _ in range(30)
        ]
        frontier = frontier[10:] + [_random_url(dice) for _ in range(12)]
        counts = {"ok": len(fetched), "failed": step // 3}
        yield {"cursor": f"page-{step}", "fetched": list(fetched), "frontier": frontier, "counts": counts}


def conversation_states(dice: random.Random, steps: int) -> Iterator[dict[str, Any]]:
    """Messages that are only ever added to."""
    words = _TEXT.split()
    messages: list[dict[str, Any]] = []
    for step in range(steps):
        messages.append({"role": "assistant", "content": " ".join(dice.choice(words) for _ in range(120))})
        rows = [[dice.randrange(1000), round(dice.random(), 4)] for _ in range(10)]
        messages.append({"role": "tool", "content": {"rows": rows}})
        yield {"messages": list(messages), "plan": ["read", "compare", "write"], "step": step, "left": 100 - step}


def weight_states(dice: random.Random, steps: int) -> Iterator[dict[str, Any]]:
    """Many numbers of which a few change at a time."""
    values = [round(dice.random(), 6) for _ in range(3000)]
    for step in range(steps):
        for _ in range(200):
            values[dice.randrange(len(values))] = round(dice.random(), 6)
        yield {"epoch": step, "loss": dice.random(), "weights": list(values)}


def copy_states(dice: random.Random, steps: int) -> Iterator[dict[str, Any]]:
    """Offsets into many tables: small parts of a middling state."""
    tables = {f"table_{n}": {"offset": 0, "last_id": 0, "rows": n * 1000, "state": "waiting"} for n in range(200)}
    for step in range(steps):
        for n in range(step * 4, step * 4 + 6):
            now = tables[f"table_{n % 200}"]
            now.update(offset=dice.randrange(10**6), last_id=dice.getrandbits(40), state=dice.choice(["going", "done"]))
        yield {"phase": "copy", "tables": {name: dict(each) for name, each in tables.items()}, "step": step}


SAMPLES = {"crawl": crawl_states, "conversation": conversation_states, "weights": weight_states, "copying": copy_states}


def _random_url(dice: random.Random) -> str:
    return f"https://docs.example/{dice.randrange(10**6)}"
