"""The first day in production: PostgreSQL and an OpenID provider, by the commands of the guide, and an approval."""

import asyncio
import json
import re
import shutil
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from proofs.first_day.guide import Guide, load_guide
from proofs.first_day.newcomer import Journal, Newcomer
from proofs.kit.child_process import ChildProcess
from proofs.kit.idp.provider import Provider, Resource, complete_sign_in, create_browser
from proofs.kit.sandbox import Sandbox
from tests.support.chromium import Tab, open_tab

_CALL_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_RESTART_SECONDS = 6.0
_SIGN_IN_URL = re.compile(r"http://127\.0\.0\.1:\d+/auth\?\S+")
_SECONDS = 60.0


@dataclass(kw_only=True, slots=True)
class Site:
    """What the person in production has: the guide, a provider, a folder and a gateway that runs."""

    guide: Guide
    idp: Provider
    user: Newcomer
    url: str
    server: ChildProcess | None = None


async def deploy(sandbox: Sandbox, user: Newcomer, journal: Journal) -> tuple[Site, int]:
    """Take the steps of the guide; return the site and how many steps it took."""
    postgres = await sandbox.start_postgres("production")
    # The guide begins with a server that has no database of this name.
    await asyncio.to_thread(postgres.run_sql, "drop database deputize", database="postgres")
    url = f"http://127.0.0.1:{sandbox.pick_free_port()}"
    idp = await _start_provider(sandbox, url)
    administrator = postgres.dsn_for("postgres").removesuffix("/postgres")
    address = administrator.partition("@")[2]
    guide = load_guide(
        {
            "postgresql://postgres@db.example.com": administrator,
            "db.example.com": address,
            "https://deputize.example.com": url,
            "https://login.example.com": idp.issuer,
        }
    )
    folder = user.home / "site"
    folder.mkdir()
    for name in ("tools", "policies"):
        shutil.copytree(user.folder / name, folder / name)
    (folder / "policies" / "files.cedar").unlink()
    site_user = Newcomer(sandbox=sandbox, bin_folder=user.bin_folder, home=user.home, folder=folder)
    site = Site(guide=guide, idp=idp, user=site_user, url=url)
    (folder / "deputize.toml").write_text(guide.find_settings("[[identity.issuers]]"))
    steps = 1
    for start in (
        "psql postgresql://postgres@db.example.com/postgres",
        "deputize migrate --print-roles",
        "psql postgresql://deputize_dba:D@db.example.com/deputize -c",
        "DEPUTIZE_DATABASE__MIGRATION_URL=",
        "mkdir -p secrets",
    ):
        result = await site_user.run_typed(guide.find_command(start))
        journal.check_result(result, f"the guide's step {start} works")
        steps += 1
    variable, _, dsn = guide.find_command("export DEPUTIZE_DATABASE__URL").removeprefix("export ").partition("=")
    site_user.variables[variable] = dsn
    doctor = await site_user.run_typed(guide.find_command("deputize doctor"))
    journal.check("✗" not in doctor.stdout, f"the doctor finds nothing broken: {doctor.stdout[-1500:]}")
    await start_server(site, journal)
    for words, fact in (
        ("nobody can be an operator", "that nobody can be an operator"),
        ("deputize:undo", "that nobody may undo"),
        ("ask for every write", "that the policies ask for every write"),
        ("console roles", "that no group has a role in the console"),
    ):
        journal.check_text(doctor.stdout, f"the doctor says {fact}", words)
    journal.check_text(guide.text, "the guide names roles in the console", "[[console.groups]]")
    journal.check_text(guide.text, "the guide names the scope of undos", "deputize:undo")
    journal.check_text(guide.text, "the guide says where PostgreSQL 16 is from", "apt.postgresql.org")
    return site, steps + 2


async def start_server(site: Site, journal: Journal, options: str = "") -> None:
    """Start the gateway as the guide does; the port is the one of its public address."""
    port = urlsplit(site.url).port
    line = f"{site.guide.find_command('deputize serve')} --port {port}{options}"
    site.server = await site.user.start_typed(f"serve{options.replace(' ', '')}", line, "▶ REST")
    worker_line = "worker in this process" in site.server.log.read_text()
    journal.check(worker_line != bool(options), "the first lines say whether a worker runs")


async def make_approved_call(site: Site, journal: Journal) -> None:
    """Sign in, call, wait for an approval, approve in a browser, and read what is kept of it."""
    user = site.user
    user.variables["DEPUTIZE_URL"] = site.url
    none = await user.run_typed("deputize call hello.greet name=Ana")
    journal.check_result(none, "a command without a token says what to do", "run deputize login", code=2)
    await _sign_in(site, journal, "ana")
    who = await user.run_typed("deputize whoami")
    journal.check_result(who, "whoami tells who", "ana in tenant acme", site.idp.issuer, "notes:write")
    journal.check_result(await user.run_typed("deputize call hello.greet name=Ana"), "a read is allowed", "Hello, Ana!")
    asked = await user.run_typed("deputize call hello.remember text=milk")
    journal.check_result(asked, "a write waits for an approval", "approval", code=3)
    found = _CALL_ID.search(asked.stdout + asked.stderr)
    call_id = found[0] if found else ""
    shown = await user.run_typed(f"deputize approvals show {call_id}")
    journal.check_result(shown, "the request can be read", "hello.remember", "milk")
    request = json.loads((await user.run_typed(f"deputize approvals show {call_id} --json")).stdout)
    refused = await user.run_typed(f"deputize approvals approve {call_id} --binding {request['binding']}")
    journal.check_result(refused, "a token for calls is told which audience is missing", "console_audience", code=1)
    page = await _approve_in_browser(site, str(request["approval_id"]))
    journal.check("succeeded" in page, f"the page shows the outcome: {page[-600:]!r}")
    journal.check_text(
        page, "the headline of an approved request says how its call ended", "the call has ended: succeeded",
        without=("the call has started", "\\n"),
    )  # fmt: skip
    watched = await user.run_typed(f"deputize calls watch {call_id}")
    journal.check_result(watched, "the approved call is executed", "succeeded")
    audit = await user.run_typed(f"deputize calls audit {call_id}")
    journal.check_result(audit, "the audit of the call can be read", "hello.remember")
    entries = await user.run_typed("deputize audit search --tool hello.remember")
    journal.check_result(entries, "the audit is searched in production", "hello.remember", "succeeded")
    journal.check("milk" in (user.folder / "notes.txt").read_text(), "the note is written")


async def leave_without_worker(site: Site, journal: Journal) -> bool:
    """Without a worker a queued call stays queued, and every place says so: the broken variant is noticed."""
    assert site.server is not None
    journal.check(await site.server.stop() == 0, "serve ends in order")
    # For so long a call does not warn: the worker may be starting anew.
    await asyncio.sleep(_RESTART_SECONDS)
    await start_server(site, journal, " --no-worker")
    queued = await site.user.run_typed("deputize call hello.greet name=Ana --async")
    log = site.server.log.read_text()
    await site.server.stop()
    signed_out = await site.user.run_typed("deputize logout")
    journal.check_result(signed_out, "logout revokes the token", "revoked at")
    return "no worker is running" in queued.stdout + queued.stderr and "none runs on this database" in log


async def _start_provider(sandbox: Sandbox, url: str) -> Provider:
    native = {"application_type": "native", "token_endpoint_auth_method": "none", "response_types": ["code"]}
    cli = {
        "client_id": "deputize-cli", **native, "redirect_uris": ["http://127.0.0.1/callback"],
        "grant_types": ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
    }  # fmt: skip
    console = {
        "client_id": "deputize-console", **native, "redirect_uris": [f"{url}/console/callback"],
        "grant_types": ["authorization_code"],
    }  # fmt: skip
    return await Provider.start(
        sandbox,
        resources={url: Resource(audience=url)},
        accounts={"ana": {}, "sam": {"groups": ["approvers"]}},
        scopes=("offline_access", "notes:write"),
        apps=(cli, console),
    )


async def _sign_in(site: Site, journal: Journal, person: str) -> None:
    """`deputize login`, and what its browser would do."""
    site.user.variables["BROWSER"] = "true"
    login = await site.user.start_typed("login", site.guide.find_command("deputize login"), "/auth?")
    found = _SIGN_IN_URL.search(login.log.read_text())
    assert found is not None
    async with create_browser(site.idp.issuer) as browser:
        answer = await browser.get(found[0])
        redirect_uri = parse_qs(urlsplit(found[0]).query)["redirect_uri"][0]
        callback = await complete_sign_in(browser, answer, person, redirect_uri)
        await browser.get(callback)
    journal.check(await login.wait_for_exit() == 0, f"login ends well: {login.last_lines()}")


async def _approve_in_browser(site: Site, request_id: str) -> str:
    """An approver signs in at the console and approves; the text of the page when the call has ended."""
    async with open_tab(site.user.home / "chromium") as tab:
        await tab.open_url(f"{site.url}/console/approvals/{request_id}")
        for _ in range(6):
            if await tab.evaluate("!!document.querySelector('button.approve')"):
                break
            await _fill_in_form(tab)
        await tab.click("button.approve")
        async with asyncio.timeout(_SECONDS):
            while "The call:" not in (text := await _read_page(tab)) or "follows it" in text:  # noqa: ASYNC110 -- a page
                await asyncio.sleep(0.2)
        return text


async def _fill_in_form(tab: Tab) -> None:
    """Type a name where the provider asks for one, and go on."""
    await tab.evaluate(
        "(() => { const name = document.querySelector('input[name=login]');"
        " if (name) { name.value = 'sam'; document.querySelector('input[name=password]').value = 'any'; } })()"
    )
    await tab.click("form button, form input[type=submit], a.button")


async def _read_page(tab: Tab) -> str:
    try:
        return str(await tab.evaluate("document.body.innerText"))
    except RuntimeError:
        # The page is being loaded again.
        return ""
