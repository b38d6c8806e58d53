"""Try every hostile case at every place, inside a network of the proof, and write what happened: run by experiment.py.

python -m proofs.ssrf.arena FOLDER QUICK|FULL
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import orjson
import structlog

from deputize.core.config_error import ConfigError
from deputize.core.errors import Problem
from deputize.evidence.tenant_log.witness_client import WitnessRefusal
from deputize.operations.background.events.sink import SinkFailure
from proofs.kit.certificates import make_authority
from proofs.kit.closed_network import claim_all_addresses, replace_system_files
from proofs.kit.name_server import NameServer
from proofs.ssrf.hostile_urls import HostileUrl, list_hostile_urls
from proofs.ssrf.judge import HARMLESS, OPERATOR_ADDRESS, PUBLIC_ADDRESS, RESULT_FILE, Attempt
from proofs.ssrf.listeners import Listeners
from proofs.ssrf.page_places import list_web_places
from proofs.ssrf.places import Place, list_gateway_places
from proofs.ssrf.service_places import list_service_places
from proofs.ssrf.sites import ATTACKER_HOST, OPERATOR_HOST, Sites, answer_stranger

_MAX_SECONDS = 60.0
_QUICK_STEP = 41
# How the product says no, and how clients say that nothing useful came back.
_REFUSALS = (Problem, ConfigError, OSError, ValueError, SinkFailure, WitnessRefusal)
_NATS_GREETING = b'INFO {"server_id":"X","connect_urls":["169.254.169.254:4222","127.0.0.1:4222"],"max_payload":1}\r\n'


class Arena:
    """The network, its name server and its sites, with the places of the product in between."""

    def __init__(self, folder: Path) -> None:
        claim_all_addresses()
        authority, tls = make_authority(folder, ["attacker.test", "*.attacker.test", OPERATOR_HOST])
        replace_system_files(folder, authority)
        self.sites, self.names = Sites(), NameServer()
        self.names.add(OPERATOR_HOST, [OPERATOR_ADDRESS])
        self.names.add(ATTACKER_HOST, [PUBLIC_ADDRESS])
        self.listeners = Listeners(tls, _NATS_GREETING, answer_stranger)
        for host in (OPERATOR_HOST, ATTACKER_HOST):
            self.listeners.add_site(host, self.sites.answer)
        self.cases = [*list_hostile_urls(self.names, self.sites.redirects), *self.sites.list_documents()]
        self.places = [
            *list_gateway_places(self.sites), *list_service_places(self.sites), *list_web_places(self.sites)
        ]  # fmt: skip
        self.names.start()
        self.listeners.start()

    async def try_place(self, place: Place, cases: Sequence[HostileUrl]) -> list[Attempt]:
        """Try a harmless URL, then the hostile cases that apply to a place, one after the other."""
        attempts = [await self._try(place, HARMLESS, f"{place.site_url}/harmless")]
        for case in cases:
            if case.is_path and not place.has_paths:
                continue
            if case.is_path:
                attempts.append(await self._try(place, case.kind, place.site_url + case.url, case.url))
            elif not place.paths_only and (case.is_never or not place.is_named):
                attempts.append(await self._try(place, case.kind, case.url))
        return attempts

    async def _try(self, place: Place, kind: str, url: str, case: str | None = None) -> Attempt:
        self.names.forget_queries()
        self.listeners.take_connections()
        self.listeners.take_methods()
        began = time.monotonic()
        try:
            async with asyncio.timeout(_MAX_SECONDS):
                await place.attempt(url)
            outcome = "done"
        except _REFUSALS as refusal:
            outcome = f"refused {type(refusal).__name__}"
        except Exception as error:  # noqa: BLE001 - whatever else a place raises is counted as unexpected
            outcome = f"error {type(error).__name__}: {error}"[:200]
        seconds = time.monotonic() - began
        addresses = tuple(each.address for each in self.listeners.take_connections())
        return Attempt(
            place.name,
            kind,
            case or url,
            outcome,
            addresses,
            round(seconds, 3),
            place.is_connecting and not place.paths_only,
            tuple(self.listeners.take_methods()),
        )


async def run_arena(arena: Arena, folder: Path, *, is_full: bool) -> list[Attempt]:
    """Try all cases in the full form. The quick form tries others at each place, together all kinds."""
    # Commands look for the settings of a project in their folder.
    os.chdir(folder)
    (folder / "deputize.toml").write_text("[tools]\npython = []\n", encoding="utf-8")
    attempts = []
    for number, place in enumerate(arena.places):
        cases = arena.cases if is_full else arena.cases[number % _QUICK_STEP :: _QUICK_STEP]
        began = time.monotonic()
        tried = await arena.try_place(place, [*cases, *place.own_cases])
        attempts += tried
        print(f"{place.name}: {len(tried)} attempts, {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return attempts


def main() -> None:
    """Run the arena and write its result into its folder."""
    folder, is_full = Path(sys.argv[1]), sys.argv[2] == "FULL"
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    arena = Arena(folder)
    attempts = asyncio.run(run_arena(arena, folder, is_full=is_full))
    covered_code = sorted({use for each in arena.places for use in each.covers})
    result = {"attempts": [asdict(each) for each in attempts], "covered_code": covered_code}
    (folder / RESULT_FILE).write_bytes(orjson.dumps(result))


if __name__ == "__main__":
    main()
