"""A newcomer's first day: from an empty folder to an approved call in production, with what they type and read.

Everything is real: the package in an empty virtual environment, a server from npm, PostgreSQL, an OpenID provider, and
a browser. The steps to production are read from the guide, so that a step it does not show cannot be taken.
"""

import sys
from dataclasses import replace
from pathlib import Path

from proofs.first_day import development, observing, production, tour
from proofs.first_day.guide import load_guide
from proofs.first_day.newcomer import Journal, Newcomer
from proofs.kit.idp.install import install_package
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox

NAME = "first_day"
PROMISE = "From nothing to an approved call in production, by what the guides show, and no message leaves one stuck."

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = Path(__file__).resolve().with_name("package.json")


async def prove(sandbox: Sandbox) -> Verdict:
    journal = Journal()
    bin_folder = await _install(sandbox) if sandbox.full else Path(sys.executable).parent
    package = await install_package(sandbox, _PACKAGE)
    home = sandbox.folder / "home"
    home.mkdir()
    home.chmod(0o711)
    user = Newcomer(sandbox=sandbox, bin_folder=bin_folder, home=home, folder=home)
    command_count = await development.reach_first_call(user, journal)
    sandbox.log("first call")
    message_faults = await development.write_tools(user, journal)
    sandbox.log("tools written and broken")
    await development.govern_server(user, journal, package)
    sandbox.log("server governed")
    await observing.observe_server(replace(user, folder=home), journal, package)
    sandbox.log("server observed")
    await tour.take_tour(user, journal)
    sandbox.log("tour taken")
    undocumented, step_count = 0, 0
    is_caught = False
    try:
        site, step_count = await production.deploy(sandbox, user, journal)
        sandbox.log("in production")
        await production.make_approved_call(site, journal)
        sandbox.log("approved, executed and read")
        is_caught = await production.leave_without_worker(site, journal)
    except LookupError as error:
        undocumented += 1
        journal.faults.append(str(error))
    return Verdict(
        figures={
            "commands_to_first_call": command_count,
            "steps_to_production": step_count,
            "settings_to_production": load_guide({}).count_settings(),
            "undocumented_steps": undocumented,
            "messages_without_the_mistake": message_faults,
            "checks": journal.check_count,
            "checks_failed": len(journal.faults),
        },
        controls={"a gateway without a worker": is_caught},
        notes=journal.faults,
    )


async def _install(sandbox: Sandbox) -> Path:
    """Install the package into an empty environment; pip keeps this machine's own settings."""
    venv = sandbox.folder / "venv"
    made = await sandbox.run_command([sys.executable, "-m", "venv", str(venv)], timeout=120)
    pip = [str(venv / "bin" / "pip"), "install", "--quiet", "--constraint", "constraints.txt", f"{_ROOT}[local]"]
    result = await sandbox.run_command(pip, cwd=_ROOT, timeout=600)
    if made.code or result.code:
        raise RuntimeError(f"the package was not installed: {made.stderr}{result.stderr[-2000:]}")
    return venv / "bin"
