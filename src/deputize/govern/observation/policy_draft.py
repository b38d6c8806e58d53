"""Draft a first policy from ordinary calls: a permit for each tool, a rule of hours for each agent, ask for the rest.

Ordinary calls are allowed by construction; what was unusual is left out. A permit names who used the tool, and limits
each argument whose values have something in common; texts that do not share it are permitted as they were, and beyond
`_MAX_EXACT_TEXTS` of them the rest asks. Of a text that is known only in part, the host or folder counts if it is
whole, and otherwise the text asks. Nothing becomes active.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from deputize.govern.approvals.permit_draft import match_agents, quote_text, render_fact, render_has
from deputize.govern.observation.argument_shapes import (
    FOLDER_DEPTH,
    SENSITIVE_PARTS,
    Shape,
    find_text_shape,
    guess_shape,
    iter_fact_names,
    list_numbers,
    read_key,
    read_texts,
)
from deputize.govern.observation.observed_call import MAX_TEXT_LENGTH, ObservedCall
from deputize.govern.observation.oddities import MIN_CALLS, group_calls

_MAX_TOOLS: Final = 500
_MAX_NAMES: Final = 50
_MAX_EXACT_TEXTS: Final = 40
# An agent that is active nearly around the clock has no hours.
_MAX_HOURS: Final = 20
_DAYS_OF_WEEK: Final = 7
# The condition of an argument of which no value is known: calls with it ask.
_NEVER: Final = "false"
# The condition of a list with more different items than a rule may name.
_ANY_ITEMS: Final = "true"
# What leads out of a folder, and several addresses, of which a pattern would match only the last.
_FOREIGN_PATTERNS: Final[Mapping[Shape, str]] = {"folder": '"*..*"', "domain": '"*@*@*"'}
_HEAD: Final = """\
// Drafted from {count} ordinary calls, seen by deputize observe. Read it, change it, and try it before you put it:
// deputize policy backtest {path}
"""
_REST: Final = """\
@id("observed-rest-asks")
@reason("This was not usual while calls were observed.")
@decision("ask")
permit (principal, action == Action::"call", resource);
"""


def draft_policy(calls: Sequence[ObservedCall], all_calls: Sequence[ObservedCall], path: str) -> str:
    """Draft the policy that allows these calls, with approval for all others. All calls tell which arguments exist."""
    names = {tool: tuple(iter_fact_names(own)) for tool, own in group_calls(all_calls, lambda call: call.tool).items()}
    rules = [_HEAD.format(count=len(calls), path=path)]
    # In less than a week, a day without calls means nothing.
    has_week = bool(all_calls) and all_calls[-1].day - all_calls[0].day >= _DAYS_OF_WEEK - 1
    by_tool = sorted(group_calls(calls, lambda call: call.tool).items())
    rules += [_draft_permit(tool, tool_calls, names.get(tool, ())) for tool, tool_calls in by_tool[:_MAX_TOOLS]]
    rules += _draft_secret_paths(calls)
    for actor, own_calls in sorted(group_calls(calls, lambda call: call.actor).items()):
        rules += _draft_hours(actor, own_calls, has_week=has_week)
    return "\n".join([*_number_ids(rules), _REST])


def _draft_permit(tool: str, calls: Sequence[ObservedCall], names: Sequence[str]) -> str:
    clauses = [_match_callers(calls), "context.labels.isEmpty()" if not any(call.suspicions for call in calls) else ""]
    for name in names:
        clauses += _limit_fact(calls, name)
    notes = [clause for clause in clauses if clause.startswith("//")]
    lines = "\n".join([*notes, *(f"when {{ {clause} }}" for clause in clauses if clause and clause not in notes)])
    reason = "1 call like this was observed." if len(calls) == 1 else f"{len(calls)} calls like this were observed."
    return (
        f"@id({quote_text(f'observed-{_make_id(tool)}')})\n"
        f"@reason({quote_text(reason)})\n"
        f'permit (principal, action == Action::"call", resource == Tool::{quote_text(tool)})\n{lines};\n'
    )


def _match_callers(calls: Sequence[ObservedCall]) -> str:
    """Match the chains of agents with the users they acted for, and the users who called themselves."""
    chains_by_users: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
    for agents, own_calls in sorted(group_calls(calls, lambda call: call.agents).items())[:_MAX_NAMES]:
        chains_by_users[tuple(sorted({call.user for call in own_calls})[:_MAX_NAMES])].append(agents)
    alternatives: list[str] = []
    for users, chains in chains_by_users.items():
        who = f"[{', '.join(f'User::{quote_text(user)}' for user in users)}].contains(principal)"
        sets = ", ".join(f"[Agent::{quote_text(chain[0])}]" for chain in chains if len(chain) == 1)
        if sets:
            alternatives.append(f"({who} && [{sets}].contains(context.agents))")
        # A set has no order: the agent that makes the call is compared, too.
        alternatives += [f"({who} && {match_agents(chain)})" for chain in chains if len(chain) > 1]
        if () in chains:
            alternatives.append(f"({who} && !context.delegated)")
    return " || ".join(alternatives)


def _limit_fact(calls: Sequence[ObservedCall], name: str) -> Iterator[str]:
    """Yield what the values of an argument have in common, as a condition, or a comment that says why not."""
    present_calls = [call for call in calls if name in call.facts]
    if any(name in call.secret_facts for call in calls):
        # Its values are never recorded, and rules see them all the same.
        return
    if not present_calls:
        yield f"!({render_has(name)})"
        return
    fact = render_fact(name)
    numbers = list_numbers(present_calls, name)
    flags = {value for call in present_calls if isinstance(value := call.facts[name], bool)}
    condition = ""
    if numbers:
        condition = f"{fact} >= {numbers[0]} && {fact} <= {numbers[-1]}"
    elif len(flags) == 1:
        condition = fact if flags == {True} else f"!{fact}"
    elif not flags:
        condition = _limit_texts(present_calls, name, fact)
    if not condition or len(present_calls) < MIN_CALLS:
        return
    if condition == _NEVER:
        yield f"// Calls with {name} ask: its values were too long to be recorded."
        yield f"!({render_has(name)})"
    elif condition == _ANY_ITEMS:
        yield f"// {name} has no limit: it had more than {_MAX_NAMES} different items."
    elif len(present_calls) == len(calls):
        yield f"{render_has(name)} && ({condition})"
    else:
        yield f"if {render_has(name)} then ({condition}) else true"


def _limit_texts(calls: Sequence[ObservedCall], name: str, fact: str) -> str:
    """Write the condition of texts or lists: nothing, if they are free, or one of the constants."""
    is_list = isinstance(calls[0].facts[name], tuple)
    # The length of a list is the number of its items, and tells nothing about each.
    pairs = {
        (text, 0 if is_list else call.lengths.get(name, 0)) for call in calls for text in read_texts(call.facts[name])
    }
    whole_texts = sorted({text for text, length in pairs if not _is_cut(text, length)})
    if is_list:
        if not whole_texts:
            return f"{fact}.isEmpty()"
        has_many = len(whole_texts) > _MAX_NAMES
        return _ANY_ITEMS if has_many else f"{_list_texts(whole_texts)}.containsAll({fact})"
    shape = find_text_shape(calls, name).shape
    if shape == "free":
        return ""
    if shape == "choice":
        return f"{_list_texts(whole_texts)}.contains({fact})" if whole_texts else _NEVER
    cut_texts = [text for text, length in pairs if _is_cut(text, length) and _has_whole_key(shape, text)]
    return _limit_text(shape, whole_texts, cut_texts, fact) or _NEVER


def _is_cut(text: str, length: int) -> bool:
    """Tell whether only the beginning of a text is known, from which no exact rule may be written."""
    return len(text) >= MAX_TEXT_LENGTH or length > len(text)


def _has_whole_key(shape: Shape, text: str) -> bool:
    """Tell whether the beginning of a text has its whole host or folder."""
    if shape == "host":
        return re.search("[/?#]", text.partition("://")[2]) is not None
    return shape == "folder" and text.count("/") >= FOLDER_DEPTH


def _limit_text(shape: Shape, whole_texts: Sequence[str], cut_texts: Sequence[str], fact: str) -> str:
    pattern_by_text = {text: _make_pattern(shape, text) for text in (*whole_texts, *cut_texts)}
    exact_texts = [text for text in whole_texts if pattern_by_text[text] is None]
    patterns = sorted({pattern for pattern in pattern_by_text.values() if pattern is not None})
    conditions = []
    if patterns:
        matches = " || ".join(f"{fact} like {pattern}" for pattern in patterns)
        foreign_pattern = _FOREIGN_PATTERNS.get(shape)
        conditions.append(f"(!({fact} like {foreign_pattern}) && ({matches}))" if foreign_pattern else matches)
    if exact_texts:
        conditions.append(f"{_list_texts(exact_texts[:_MAX_EXACT_TEXTS])}.contains({fact})")
    return " || ".join(conditions)


def _list_texts(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(quote_text, texts))}]"


def _make_pattern(shape: Shape, text: str) -> str | None:
    """Make the pattern of a text's domain, host or folder; None if it has none, or climbs to another folder.

    A pattern without a domain, host or folder would match every other text.
    """
    if shape == "folder":
        folder = read_key("folder", text)
        # "//" and "/./" are the root by other names.
        is_root = folder != "." and not folder.strip("/.")
        return None if is_root else f'"{_escape(folder)}/*"'
    if shape == "domain":
        domain = text.rpartition("@")[2]
        return f'"*@{_escape(domain)}"' if domain and text.count("@") == 1 else None
    scheme, _, rest = text.partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if not host:
        return None
    # With what ends the host: a pattern without it would match longer names, too.
    end = f"{_escape(rest[len(host)])}*" if len(rest) > len(host) else ""
    return f'"{_escape(scheme)}://{_escape(host)}{end}"'


def _escape(text: str) -> str:
    """Write a text as part of a pattern, in which a star means itself."""
    return quote_text(text)[1:-1].replace("*", "\\*")


def _draft_secret_paths(calls: Sequence[ObservedCall]) -> Iterator[str]:
    """Draft a rule for each argument that takes paths: it asks where secrets are kept, unless that was usual.

    A few calls suffice: an argument whose folders get no limit needs the rule most.
    """
    names: set[str] = set()
    for tool_calls in group_calls(calls, lambda call: call.tool).values():
        names |= {name for name in iter_fact_names(tool_calls) if guess_shape(tool_calls, name) == "folder"}
    for name in sorted(names):
        # A path may begin with such a part, without a slash.
        texts = {f"/{text}" for call in calls for text in read_texts(call.facts.get(name))}
        parts = [part for part in SENSITIVE_PARTS if not any(part in text for text in texts)]
        patterns = [f"*{part}*" for part in parts] + [f"{part[1:]}*" for part in parts if part[0] == "/"]
        # Of lists, rules cannot compare the parts.
        if parts and not any(isinstance(call.facts.get(name), tuple) for call in calls):
            condition = " || ".join(f"{render_fact(name)} like {quote_text(pattern)}" for pattern in patterns)
            yield (
                f"@id({quote_text(f'observed-secrets-{_make_id(name)}')})\n"
                f"@reason({quote_text('Secrets are kept there, and none was read while calls were observed.')})\n"
                f'@decision("ask")\nforbid (principal, action == Action::"call", resource)\n'
                f"when {{ {render_has(name)} && ({condition}) }};\n"
            )


def _draft_hours(actor: str, calls: Sequence[ObservedCall], *, has_week: bool) -> Iterator[str]:
    """Draft the rule that asks outside the hours and days in which an agent was active."""
    if not calls[0].agents or len(calls) < MIN_CALLS:
        return
    hours = sorted({call.hour for call in calls})
    weekdays = sorted({call.weekday for call in calls})
    conditions = []
    if len(hours) <= _MAX_HOURS:
        conditions.append(f"[{', '.join(map(str, hours))}].contains(context.time.hour)")
    if len(weekdays) < _DAYS_OF_WEEK and has_week:
        conditions.append(f"[{', '.join(map(str, weekdays))}].contains(context.time.weekday)")
    if conditions:
        yield (
            f"@id({quote_text(f'observed-hours-{_make_id(actor)}')})\n"
            f"@reason({quote_text('This agent was not active at such a time while calls were observed.')})\n"
            f'@decision("ask")\nforbid (principal, action == Action::"call", resource)\n'
            f"when {{ context.agents.contains(Agent::{quote_text(actor)}) }}\n"
            f"unless {{ {' && '.join(conditions)} }};\n"
        )


def _number_ids(rules: Sequence[str]) -> Iterator[str]:
    """Number the ids that two names share: each must be there once."""
    counts: dict[str, int] = {}
    for rule in rules:
        name = rule.partition("\n")[0]
        counts[name] = counts.get(name, 0) + 1
        is_repeat = name.startswith("@id(") and counts[name] > 1
        yield rule.replace(name, f'{name[:-2]}-{counts[name]}")', 1) if is_repeat else rule


def _make_id(name: str) -> str:
    """Make the part of a rule's id that names a tool or an agent."""
    return "".join(each if each.isascii() and each.isalnum() else "-" for each in name)[:80]
