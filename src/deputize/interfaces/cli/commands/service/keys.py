"""Define `deputize keys`: rotate signing keys, keys of logs, tenants' keys and the master key while gateways run."""

from typing import Annotated, Any

import typer

from deputize.interfaces.cli.local.project_file import enter_project, load_settings
from deputize.interfaces.cli.render.output import Json, exit_with_error, format_count, printer

group = typer.Typer(no_args_is_help=True, help="Rotate keys and show their state. For the operator, at the database.")
rotation = typer.Typer(no_args_is_help=True, help="Rotate signing keys, tenants' keys or the master key.")
group.add_typer(rotation, name="rotate", epilog="Example: deputize keys rotate signing --all")

TenantOption = Annotated[list[str] | None, typer.Option("--tenant", help="A tenant; repeat for more.")]
EveryTenant = Annotated[bool, typer.Option("--all", help="Every tenant of the database.")]


@rotation.command("signing", epilog="Example: deputize keys rotate signing --tenant acme")
def rotate_signing(tenant: TenantOption = None, every: EveryTenant = False, json: Json = False) -> None:
    """Sign new tokens with a new key. The old one verifies until every token it signed has expired."""
    from deputize.interfaces.cli.local.key_rotation import run_with_keys

    tenants = _choose_tenants(tenant, every)
    rotations = run_with_keys(load_settings(), lambda keys: keys.rotate_signing_keys(tenants))
    if json:
        printer.json({"rotated": rotations})
    for each in rotations:
        printer.success(f"{each['tenant']}: {each['kid']} signs within 5 minutes on every gateway")


@rotation.command("log", epilog="Example: deputize keys rotate log --tenant acme")
def rotate_log(tenant: TenantOption = None, every: EveryTenant = False, json: Json = False) -> None:
    """Sign checkpoints of the audit log with a new key. The old one signs too for a week, and verifies for ever."""
    from deputize.interfaces.cli.local.key_rotation import run_with_keys

    tenants = _choose_tenants(tenant, every)
    rotations = run_with_keys(load_settings(), lambda keys: keys.rotate_log_keys(tenants))
    if json:
        printer.json({"rotated": rotations})
    for each in rotations:
        printer.success(f"{each['tenant']}: give this key to those who verify receipts: {each['verifier_key']}")


@rotation.command("tenant", epilog="Example: deputize keys rotate tenant --tenant acme")
def rotate_tenant(tenant: TenantOption = None, every: EveryTenant = False, json: Json = False) -> None:
    """Encrypt a tenant's data with a new key. Older keys still decrypt what they encrypted."""
    from deputize.interfaces.cli.local.key_rotation import run_with_keys

    tenants = _choose_tenants(tenant, every)
    rotations = run_with_keys(load_settings(), lambda keys: keys.rotate_tenant_keys(tenants))
    if json:
        printer.json({"rotated": rotations})
    for each in rotations:
        printer.success(f"{each['tenant']}: version {each['version']} encrypts in 2 minutes, when every gateway has it")


@rotation.command("master", epilog="Example: deputize keys rotate master")
def rotate_master(json: Json = False) -> None:
    """Wrap every tenant's keys with the master key of keys.master_file. Can be interrupted and started again."""
    from deputize.interfaces.cli.local.key_rotation import KeyStore, run_with_keys

    enter_project()

    async def rewrap(keys: KeyStore) -> tuple[int, str]:
        return await keys.rewrap_keys(lambda count: printer.note(f"  {count} wrapped")), keys.master.id

    rewrap_count, master_id = run_with_keys(load_settings(), rewrap)
    if json:
        printer.json({"master": master_id, "rewrapped": rewrap_count})
    printer.success(f"{format_count(rewrap_count, 'key')} wrapped with the master key {master_id}; none is left")


@group.command(epilog="Example: deputize keys reseal --tenant acme")
def reseal(tenant: TenantOption = None, every: EveryTenant = False, json: Json = False) -> None:
    """Encrypt secrets, linked accounts, clients and signing keys with their tenant's newest key. Can be interrupted."""
    from deputize.interfaces.cli.local.key_rotation import KeyStore, run_with_keys

    tenants = _choose_tenants(tenant, every)

    async def reseal_values(keys: KeyStore) -> list[dict[str, Any]]:
        return await keys.reseal_values(tenants, lambda count: printer.note(f"  {count} encrypted"))

    reseals = run_with_keys(load_settings(), reseal_values)
    if json:
        printer.json({"resealed": reseals})
        return
    for each in reseals:
        left = f"{each['left']} in use by a gateway: start this again" if each["left"] else "none is left"
        count = format_count(each["resealed"], "value")
        printer.success(f"{each['tenant']}: {count} encrypted with version {each['version']}; {left}")


@group.command(epilog="Example: deputize keys status")
def status(json: Json = False) -> None:
    """Show which master key wraps how many keys, and each tenant's own, signing and log keys."""
    from deputize.interfaces.cli.local.key_rotation import run_with_keys

    enter_project()
    answer = run_with_keys(load_settings(), lambda keys: keys.describe_keys())
    if json:
        printer.json(answer)
        return
    master_state: dict[str, Any] = answer["master"]
    left = master_state["keys_to_rewrap"]
    todo = f", {format_count(left, 'key')} to wrap: deputize keys rotate master" if left else ", none to wrap again"
    printer.line(f"Master key {master_state['id']}: wraps {format_count(master_state['wrapped_keys'], 'key')}{todo}")
    for each in master_state["accepted"]:
        printer.line(f"Accepted master key {each['id']}: wraps {format_count(each['wrapped_keys'], 'key')}")
    rows = [
        (each["tenant"], "tenant", f"version {each['version']}", each["state"], each["active_from"])
        for each in answer["tenants"]
    ]
    rows += [
        (each["tenant"], "signing", each["kid"], each["state"], each["verifies_until"] or "")
        for each in answer["signing"]
    ]
    rows += [
        (each["tenant"], "log", each["verifier_key"], each["state"], each["signs_until"] or "")
        for each in answer["logs"]
    ]
    if rows:
        printer.table(("tenant", "kind", "key", "state", "from or until"), rows)


def _choose_tenants(tenants: list[str] | None, every: bool) -> list[str]:
    enter_project()
    if bool(tenants) == every:
        exit_with_error("Which tenants? Write --tenant NAME, or --all for every tenant of the database.")
    return tenants or []
