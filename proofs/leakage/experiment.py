"""Secrets and personal data are planted in everything that passes a gateway; then they are searched for.

Each value is in one call. Some are marked by the contract, some have the name of a secret, some the format of a known
service; personal data has a structure; the rest has neither, and is a figure only. Results belong to the caller, and
sealed rows hold ciphertext: everything else is searched, in each spelling. A gateway without redaction must be caught.
"""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.kit.secret_patterns import SecretMatch, SecretPatterns
from proofs.leakage.channels import CHANNELS, Channel
from proofs.leakage.clean_documents import build_clean_documents, count_changed, count_suspected
from proofs.leakage.planted_values import Marking, PlantedValue, PlantedValues, find_secret_part
from proofs.leakage.second_opinion import count_findings
from proofs.leakage.testbed import SESSION, Testbed, start_testbed

NAME = "leakage"
PROMISE = "No secret that is marked, named or of a known format is shown, logged, traced, sent or stored in the clear."

Plants = Sequence[tuple[Channel, PlantedValue]]
_MAX_NOTES = 40


async def prove(sandbox: Sandbox) -> Verdict:
    rng = random.Random(20261117)
    plants = plant_values(rng, sandbox.pick_size(quick=150, full=1100))
    testbed = await start_testbed(sandbox)
    sandbox.log("everything is started")
    await testbed.send_all(plants)
    sandbox.log("every call was answered")
    await testbed.wait_for_end()
    sandbox.log(f"{len(plants)} values went through {len(CHANNELS)} channels")
    places = await testbed.collect_places()
    # Those that have a bar first: the notes are limited.
    leaks = sorted(await find_leaks(plants, places), key=lambda each: f"|{Marking.FREE}|" in each)
    for each in leaks[:_MAX_NOTES]:
        sandbox.log(each)
    figures = judge_leaks(plants, leaks)
    documents = build_clean_documents(random.Random(7), sandbox.pick_size(quick=300, full=500))
    figures["unexpected_answers"] = testbed.unexpected
    figures["clean_documents"] = len(documents)
    figures["clean_documents_changed"] = round(count_changed(documents) / len(documents), 4)
    figures["clean_documents_suspected"] = round(count_suspected(documents) / len(documents), 4)
    controls = {"the search finds what is there": await _can_search_find(sandbox, places)}
    if sandbox.full:
        texts = [file for name in ("logs", "webhooks", "approval requests", "errors") for file in places[name]]
        figures["second_opinion"] = await count_findings(sandbox, texts)
        raw_file = sandbox.folder / "raw"
        raw_file.write_text("\n".join(value.value for _, value in plants if value.marking is Marking.FORMAT))
        controls["the second opinion finds what is there"] = await count_findings(sandbox, [raw_file]) > 0
        controls["nothing is redacted"] = await _is_unredacted_caught(testbed, rng)
    return Verdict(figures=figures, controls=controls, notes=leaks[:_MAX_NOTES])


def plant_values(rng: random.Random, count: int) -> Plants:
    """Plant so many values, in every channel and of every marking in turn."""
    values = PlantedValues(rng)
    pairs = [(channel, marking) for channel in CHANNELS for marking in channel.markings]
    return [(channel, values.make(marking)) for channel, marking in (pairs[n % len(pairs)] for n in range(count))]


async def find_leaks(plants: Plants, places: dict[str, list[Path]]) -> list[str]:
    """Name each value that was found, as its number, marking, kind, channel and place."""
    patterns = SecretPatterns()
    for number, (channel, value) in enumerate(plants):
        label = f"{number}|{value.marking}|{value.kind}|{channel.name}"
        patterns.add_secret(label, find_secret_part(value))
    matches: list[SecretMatch] = []
    for place, files in places.items():
        found = await patterns.search(place, *files)
        if found and len(files) > 1:
            found = [each for file in files for each in await patterns.search(f"{place} {file.stem}", file)]
        matches += found
    return [f"{each.what}|{each.place}" for each in matches]


def judge_leaks(plants: Plants, leaks: Sequence[str]) -> dict[str, Figure]:
    """Count planted and found values by their marking; a value that is in two places is one."""
    planted = Counter(value.marking for _, value in plants)
    found = Counter(marking for _, marking in {tuple(each.split("|")[:2]) for each in leaks})
    return {
        "planted": len(plants),
        "channels": len({channel.name for channel, _ in plants}),
        **{f"{each}_found": found[each] for each in (Marking.MARKED, Marking.NAMED, Marking.FORMAT)},
        "personal_recall": round(1 - found[Marking.PERSONAL] / max(1, planted[Marking.PERSONAL]), 4),
        "free_text_recall": round(1 - found[Marking.FREE] / max(1, planted[Marking.FREE]), 4),
    }


async def _can_search_find(sandbox: Sandbox, places: dict[str, list[Path]]) -> bool:
    """What every call carried is in the tables, the webhooks and the audit, and tools are named elsewhere."""
    markers = {"tables": SESSION, "webhooks": SESSION, "audit and metrics": SESSION, "approval requests": SESSION}
    for place, text in {**markers, "spans": "leakage.look", "logs": "127.0.0.1", "errors": "call_id"}.items():
        patterns = SecretPatterns()
        patterns.add_secret(text, text)
        if not await patterns.search(place, *places[place]):
            sandbox.log(f"the search does not find {text} in {place}")
            return False
    return True


async def _is_unredacted_caught(testbed: Testbed, rng: random.Random) -> bool:
    """A gateway without redaction shows values of every marking."""
    await restart_as_variant(testbed.gateway, "leakage_unredacted")
    values = PlantedValues(rng)
    shown = [each for each in CHANNELS if each.name in ("approval", "exception of a read", "conflict of a read")]
    plants = [(channel, values.make(marking)) for channel in shown for marking in Marking for _ in range(2)]
    await testbed.send_all(plants)
    places = {"approval requests": [testbed.approvals], "errors": [testbed.errors]}
    figures = judge_leaks(plants, await find_leaks(plants, places))
    testbed.sandbox.log(f"without redaction: {figures}")
    found = [figures[f"{each}_found"] for each in (Marking.MARKED, Marking.NAMED, Marking.FORMAT)]
    return all(int(each) >= len(shown) for each in found) and figures["personal_recall"] == 0
