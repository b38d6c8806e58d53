"""Run a development gateway as another user than the project's owner, whose agents it is protected from."""

import os
import pwd
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings
from deputize.interfaces.cli.local.separate_user.project_snapshot import ProjectFile, read_snapshot
from deputize.interfaces.cli.local.separate_user.protected_folder import (
    CLIENT_FOLDER,
    GATEWAY_FOLDER,
    locate_protected_folder,
)

_PACKAGE = Path(__file__).resolve().parents[4]


@dataclass(frozen=True, kw_only=True, slots=True)
class UserAccount:
    """An account of this machine, with all groups that it is a member of."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str = "/"


def find_gateway_account(name: str) -> UserAccount:
    """Find the account that the gateway will run as; refuse if this process may not become it."""
    if os.geteuid() != 0:
        raise ConfigError(
            "Only root can run a gateway as another user, so deputize dev --user must be started by root: "
            f"run sudo deputize dev --user {name} in this folder."
        )
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ConfigError(
            f"There is no user {name} on this machine: create one with useradd --system {name}, or name another."
        ) from None
    if entry.pw_uid == 0:
        raise ConfigError("--user needs an account with fewer rights than root: create one with useradd --system.")
    return _build_account(entry)


def find_project_owner(project: Path) -> UserAccount:
    """Find the account that owns the current folder, which agents are assumed to have."""
    facts = os.stat(".")
    if facts.st_uid == 0:
        raise ConfigError(
            f"The folder {project} belongs to root, from whom nothing can be hidden: give it to the account that your "
            "agents have, with chown -R, and start again."
        )
    try:
        return _build_account(pwd.getpwuid(facts.st_uid))
    except KeyError:
        return UserAccount(name=str(facts.st_uid), uid=facts.st_uid, gid=facts.st_gid, groups=(facts.st_gid,))


def require_separation(account: UserAccount, owner: UserAccount, project: Path) -> None:
    """Refuse an account that is the project's owner, or that can write to the project."""
    if account.uid == owner.uid:
        raise ConfigError(
            f"The folder {project} belongs to {account.name}, so agents would have the gateway's account: name another "
            "user, for example one created with useradd --system."
        )
    with act_as(account):
        can_write = os.access(".", os.W_OK, effective_ids=True)
    if can_write:
        raise ConfigError(
            f"{account.name} can write to {project}, so its tools could change the files that you confirm: take that "
            "right away with chmod or setfacl, or name another user."
        )


def require_protected_program(account: UserAccount, owner: UserAccount) -> None:
    """Refuse a program that the project's owner can change, or that the gateway's user cannot read."""
    for path in (Path(sys.executable), Path(sys.prefix), _PACKAGE, *(Path(each or ".") for each in sys.path)):
        part = find_changeable_part(path.absolute(), owner)
        if part is not None:
            raise ConfigError(
                f"{owner.name} can change {part}, from which Python loads this program: install deputize in a folder "
                "of root's, such as /opt/deputize, and start that one (not with python -m)."
            )
    with act_as(account):
        unreadable = [each for each in (Path(sys.executable), _PACKAGE) if not _can_use(each)]
    if unreadable:
        raise ConfigError(
            f"{account.name} cannot read {unreadable[0]}: install deputize where every user can read it, such as "
            "/opt/deputize."
        )


def require_protected_settings(settings: Settings, owner: UserAccount) -> None:
    """Refuse settings that name files outside the confirmed ones which the project's owner can change."""
    for pattern in settings.policy.files:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise ConfigError(f"policy.files lists {pattern!r}, which is outside the project: move it into its folder.")
    paths = list(_iterate_paths(settings, ""))
    for server in settings.servers:
        command = [shutil.which(server.command[0]) or server.command[0], *server.command[1:]] if server.command else []
        paths += [(f"command of the server {server.name}", Path(word)) for word in command if word.startswith("/")]
    for name, path in paths:
        part = find_changeable_part(path, owner) if path.is_absolute() else None
        if ".." in path.parts or part is not None:
            raise ConfigError(
                f"{name} names {path}, which {owner.name} can change: move the file into the project and name it "
                "relative to its folder, or to a place that only root can write."
            )


def find_changeable_part(path: Path, owner: UserAccount) -> Path | None:
    """Find the file or folder of an absolute path that an account can change, and so all that is behind it."""
    for variant in dict.fromkeys((path, Path(os.path.realpath(path)))):
        has_entry_below = False
        for part in (variant, *variant.parents):
            try:
                facts = os.lstat(part)
            except OSError:
                has_entry_below = False
                continue
            # In a sticky folder, only the owner of an entry can replace it; but anybody can add one.
            is_kept = bool(facts.st_mode & stat.S_ISVTX) and has_entry_below
            if not stat.S_ISLNK(facts.st_mode) and _can_write(facts, owner) and not is_kept:
                return part
            has_entry_below = True
    return None


def create_protected_folder(project: Path, account: UserAccount, owner: UserAccount) -> Path:
    """Create the folder of a project, with a private part for the gateway's user and one for clients."""
    folder = locate_protected_folder(project)
    try:
        for path in (folder.parent.parent, folder.parent, folder):
            path.mkdir(exist_ok=True)
            # Others may pass through to what they may read, but not list it.
            path.chmod(0o711)
        for path, mode, gid in (
            (folder / GATEWAY_FOLDER, 0o700, account.gid),
            # What the gateway writes here gets the group of the project's owner.
            (folder / CLIENT_FOLDER, 0o2750, owner.gid),
        ):
            path.mkdir(exist_ok=True)
            _require_holder(path, account, folder)
            os.chown(path, account.uid, gid)
            path.chmod(mode)
    except OSError as error:
        raise ConfigError(
            f"The folder {folder} cannot be prepared ({error.strerror}): check its permissions."
        ) from None
    return folder


def _require_holder(path: Path, account: UserAccount, folder: Path) -> None:
    holder = path.stat().st_uid
    if holder not in (0, account.uid):
        name = _name_user(holder)
        raise ConfigError(
            f"The state of this project belongs to {name}: use --user {name}, or delete {folder} to start with an "
            "empty database."
        )


def read_project(owner: UserAccount) -> dict[str, ProjectFile]:
    """Read the files of the current folder with the rights of its owner, so that no trick shows more than it has."""
    with act_as(owner):
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return read_snapshot(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def act_as(account: UserAccount) -> Iterator[None]:
    """Use another account's rights for files while the block runs; only for root."""
    groups = os.getgroups()
    try:
        os.setgroups(account.groups)
        os.setegid(account.gid)
        os.seteuid(account.uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def become_user(account: UserAccount) -> None:
    """Give up root's rights for good, and become another user."""
    os.umask(0o077)
    os.setgroups(account.groups)
    os.setgid(account.gid)
    os.setuid(account.uid)
    os.environ.update(HOME=account.home, USER=account.name, LOGNAME=account.name)
    if os.getresuid() != (account.uid,) * 3 or os.getresgid() != (account.gid,) * 3:
        raise ConfigError(
            f"This process could not become {account.name}: start it as root, without a container's limits."
        )


def _build_account(entry: pwd.struct_passwd) -> UserAccount:
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
    return UserAccount(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, groups=groups, home=entry.pw_dir or "/")


def _name_user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _can_write(facts: os.stat_result, account: UserAccount) -> bool:
    if facts.st_uid == account.uid:
        return True
    if facts.st_mode & stat.S_IWGRP and facts.st_gid in account.groups:
        return True
    return bool(facts.st_mode & stat.S_IWOTH)


def _can_use(path: Path) -> bool:
    return os.access(path, os.R_OK | os.X_OK, effective_ids=True)


def _iterate_paths(value: object, name: str) -> Iterator[tuple[str, Path]]:
    """Yield every path in the settings, with its name."""
    if isinstance(value, Path):
        yield name, value
    elif isinstance(value, BaseModel):
        for key in type(value).model_fields:
            yield from _iterate_paths(getattr(value, key), f"{name}.{key}" if name else key)
    elif isinstance(value, tuple):
        for each in value:
            yield from _iterate_paths(each, name)
