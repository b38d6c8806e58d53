"""Repositories that run a program for whoever uses git on them as usual, or lead outside of themselves.

Each trap says what it plants and which ordinary commands fall for it: a trap that nothing falls for proves nothing.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Ground:
    """A repository with a history, a program that leaves a mark, and a folder outside with a secret."""

    folder: Path

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    @property
    def outside(self) -> Path:
        return self.folder / "outside"

    @property
    def mark(self) -> Path:
        return self.folder / "mark"

    @property
    def program(self) -> Path:
        return self.folder / "program"

    def git(self, *arguments: str, stdin: str = "", folder: Path | None = None) -> str:
        """Run git as usual, with what the repository configures; failing is fine."""
        done = subprocess.run(
            ["git", "-c", "user.name=Ann", "-c", "user.email=ann@example.com", *arguments],
            cwd=folder or self.repository, input=stdin, capture_output=True, text=True, check=False, timeout=20,
            env={
                "PATH": "/usr/bin:/bin", "HOME": str(self.folder), "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_TERMINAL_PROMPT": "0", "PROGRAM": str(self.program),
            },
        )  # fmt: skip
        return done.stdout

    def configure(self, **values: str) -> None:
        for name, value in values.items():
            self.git("config", "--add", name.replace("__", "."), value.replace("PROGRAM", str(self.program)))

    def add_hook(self, name: str, folder: Path | None = None) -> None:
        hooks = folder or self.repository / ".git" / "hooks"
        hooks.mkdir(exist_ok=True)
        (hooks / name).write_text(f"#!/bin/sh\n{self.program}\nexit 0\n")
        (hooks / name).chmod(0o755)

    def commit(self, path: str, content: str) -> None:
        (self.repository / path).parent.mkdir(parents=True, exist_ok=True)
        (self.repository / path).write_text(content)
        self.git("-c", "core.hooksPath=/dev/null", "add", "--", path)
        self.git("-c", "core.hooksPath=/dev/null", "commit", "--quiet", "-m", f"Add {path}")


def copy_ground(ground: Ground, folder: Path) -> Ground:
    """Copy a repository that nothing was planted in yet."""
    shutil.copytree(ground.folder, folder, symlinks=True)
    return _write_program(Ground(folder=folder))


def make_ground(folder: Path) -> Ground:
    ground = _write_program(Ground(folder=folder))
    ground.outside.mkdir()
    (ground.outside / "secret.txt").write_text("secret\n")
    ground.repository.mkdir()
    ground.git("init", "--quiet", "--initial-branch=main")
    ground.commit("a.txt", "one\n")
    ground.commit("src/b.txt", "two\n")
    ground.git("branch", "other")
    return ground


def _write_program(ground: Ground) -> Ground:
    ground.folder.mkdir(parents=True, exist_ok=True)
    ground.program.write_text(f"#!/bin/sh\ntouch {ground.mark}\ncat /dev/null\n")
    ground.program.chmod(0o755)
    return ground


@dataclass(frozen=True, kw_only=True)
class Trap:
    """`refusal` is a part of the reason for which such a repository is refused; None if it is used without harm."""

    name: str
    plant: Callable[[Ground], None]
    fall: Callable[[Ground], None]
    refusal: str | None = None


def _run(*commands: str) -> Callable[[Ground], None]:
    def fall(ground: Ground) -> None:
        (ground.repository / "a.txt").write_text("changed\n")
        for command in commands:
            ground.git(*command.split())

    return fall


def _config(**values: str) -> Callable[[Ground], None]:
    return lambda ground: ground.configure(**values)


def _hook(name: str, **values: str) -> Callable[[Ground], None]:
    def plant(ground: Ground) -> None:
        ground.add_hook(name)
        ground.configure(**values)

    return plant


def _attribute(attribute: str, **values: str) -> Callable[[Ground], None]:
    def plant(ground: Ground) -> None:
        ground.commit(".gitattributes", f"*.txt {attribute}\n")
        ground.configure(**values)

    return plant


def _info_attribute(ground: Ground) -> None:
    (ground.repository / ".git" / "info" / "attributes").write_text("*.txt filter=x\n")
    ground.configure(filter__x__clean="PROGRAM")


def _attributes_file(ground: Ground) -> None:
    (ground.folder / "attributes").write_text("*.txt filter=x\n")
    ground.configure(core__attributesFile=str(ground.folder / "attributes"), filter__x__clean="PROGRAM")


def _include(section: str) -> Callable[[Ground], None]:
    def plant(ground: Ground) -> None:
        (ground.folder / "more").write_text(f'[core]\n\tfsmonitor = "{ground.program}"\n')
        (ground.repository / ".git" / "config").open("a").write(f'[{section}]\n\tpath = "{ground.folder}/more"\n')

    return plant


def _worktree_config(ground: Ground) -> None:
    ground.configure(extensions__worktreeConfig="true")
    (ground.repository / ".git" / "config.worktree").write_text(f'[core]\n\tfsmonitor = "{ground.program}"\n')


def _hooks_path(ground: Ground) -> None:
    ground.add_hook("pre-commit", ground.folder / "hooks")
    ground.configure(core__hooksPath=str(ground.folder / "hooks"))


def _signed(ground: Ground) -> None:
    raw = ground.git("cat-file", "commit", "HEAD")
    head, _, message = raw.partition("\n\n")
    signature = "gpgsig -----BEGIN PGP SIGNATURE-----\n \n iQ==\n -----END PGP SIGNATURE-----"
    signed = ground.git("hash-object", "-t", "commit", "-w", "--stdin", stdin=f"{head}\n{signature}\n\n{message}")
    ground.git("update-ref", "refs/heads/main", signed.strip())
    ground.configure(gpg__program="PROGRAM", log__showSignature="true")


def _nested(ground: Ground) -> None:
    """Put a repository into the checkout whose configuration runs a program when its status is asked for."""
    inner = ground.repository / "inner"
    inner.mkdir()
    ground.git("init", "--quiet", folder=inner)
    (inner / "f").write_text("f\n")
    ground.git("add", "f", folder=inner)
    ground.git("commit", "-m", "f", folder=inner)
    ground.git("add", "inner")
    ground.git("commit", "-m", "inner")
    ground.git("config", "core.fsmonitor", str(ground.program), folder=inner)


def _proc_receive(ground: Ground) -> None:
    ground.add_hook("proc-receive")
    ground.configure(receive__procReceiveRefs="refs/heads/agent")


def _alternate_refs(ground: Ground) -> None:
    _alternates(ground)
    ground.configure(core__alternateRefsCommand="PROGRAM")


def _alternates(ground: Ground) -> None:
    other = ground.outside / "other"
    other.mkdir()
    ground.git("init", "--quiet", folder=other)
    ground.git("hash-object", "-w", "--stdin", stdin="secret\n", folder=other)
    (ground.repository / ".git/objects/info/alternates").write_text(f"{other}/.git/objects\n")


def _read_borrowed(ground: Ground) -> None:
    if ground.git("cat-file", "-p", "d97c5eada5d8c52079031eef0107a4430a9617c5") == "secret\n":
        ground.mark.touch()


def _partial(ground: Ground) -> None:
    ground.configure(
        core__repositoryFormatVersion="1", extensions__partialClone="origin", remote__origin__url="ssh://host/x",
        core__sshCommand="PROGRAM",
    )  # fmt: skip


def _linked(ground: Ground) -> None:
    git_dir = ground.repository / ".git"
    ground.configure(core__fsmonitor="PROGRAM")
    git_dir.rename(ground.outside / "git")
    git_dir.write_text(f"gitdir: {ground.outside}/git\n")


def _move_out(name: str) -> Callable[[Ground], None]:
    def plant(ground: Ground) -> None:
        moved = ground.outside / "moved"
        source = ground.repository / ".git" / name
        source.mkdir(exist_ok=True)
        source.rename(moved)
        source.symlink_to(moved)

    return plant


def _see_outside(*commands: str) -> Callable[[Ground], None]:
    def fall(ground: Ground) -> None:
        before = sorted(map(str, ground.outside.rglob("*")))
        _run(*commands)(ground)
        if before != sorted(map(str, ground.outside.rglob("*"))):
            ground.mark.touch()

    return fall


def _worktree_outside(ground: Ground) -> None:
    ground.configure(core__worktree=str(ground.outside))


def _replace(ground: Ground) -> None:
    forged = ground.git("commit-tree", "-m", "forged", "HEAD^{tree}").strip()
    ground.git("replace", "HEAD", forged)


def _graft(ground: Ground) -> None:
    (ground.repository / ".git/info/grafts").write_text(ground.git("rev-parse", "HEAD"))


def _see_forged(ground: Ground) -> None:
    if len(ground.git("log", "--format=%H").split()) == 1:
        ground.mark.touch()


def _pipe(ground: Ground) -> None:
    (ground.repository / ".git" / "packed-refs").unlink(missing_ok=True)
    os.mkfifo(ground.repository / ".git" / "packed-refs")


def _hang(ground: Ground) -> None:
    try:
        subprocess.run(["git", "log"], cwd=ground.repository, capture_output=True, check=False, timeout=1)
    except subprocess.TimeoutExpired:
        ground.mark.touch()


def _credential(ground: Ground) -> None:
    ground.git("credential", "fill", stdin="protocol=https\nhost=example.com\n\n")


def _merge(ground: Ground) -> None:
    ground.git("checkout", "--quiet", "-b", "side")
    ground.commit("a.txt", "side\n")
    ground.git("checkout", "--quiet", "main")
    ground.commit("a.txt", "main\n")
    ground.git("merge", "side")


_LOCAL_PUSH = "push . main:refs/heads/agent/control"
TRAPS = (
    Trap(name="core.fsmonitor", plant=_config(core__fsmonitor="PROGRAM"), fall=_run("status")),
    *(
        Trap(name=f"hook {name}", plant=_hook(name), fall=_run(*commands))
        for name, commands in {
            "pre-commit": ("commit -am x",),
            "commit-msg": ("commit -am x",),
            "prepare-commit-msg": ("commit -am x",),
            "post-commit": ("commit -am x",),
            "post-rewrite": ("commit --amend -am x",),
            "post-checkout": ("checkout -b agent/control",),
            "post-index-change": ("add a.txt",),
            "reference-transaction": ("branch agent/control",),
            "pre-push": (_LOCAL_PUSH,),
            "pre-receive": (_LOCAL_PUSH,),
            "update": (_LOCAL_PUSH,),
            "post-receive": (_LOCAL_PUSH,),
            "post-update": (_LOCAL_PUSH,),
            "pre-rebase": ("stash", "rebase --force-rebase other"),
        }.items()
    ),
    Trap(name="hook proc-receive", plant=_proc_receive, fall=_run(_LOCAL_PUSH)),
    Trap(name="core.hooksPath", plant=_hooks_path, fall=_run("commit -am x")),
    Trap(name="diff.external", plant=_config(diff__external="PROGRAM"), fall=_run("diff")),
    Trap(name="textconv", plant=_attribute("diff=x", diff__x__textconv="PROGRAM"), fall=_run("diff")),
    Trap(name="textconv in log", plant=_attribute("diff=x", diff__x__textconv="PROGRAM"), fall=_run("log -p")),
    Trap(name="textconv in blame", plant=_attribute("diff=x", diff__x__textconv="PROGRAM"), fall=_run("blame a.txt")),
    Trap(name="diff driver", plant=_attribute("diff=x", diff__x__command="PROGRAM"), fall=_run("diff")),
    Trap(name="filter clean", plant=_attribute("filter=x", filter__x__clean="PROGRAM"), fall=_run("add a.txt")),
    Trap(
        name="filter smudge", plant=_attribute("filter=x", filter__x__smudge="PROGRAM"), fall=_run("checkout -- a.txt")
    ),
    Trap(name="filter process", plant=_attribute("filter=x", filter__x__process="PROGRAM"), fall=_run("add a.txt")),
    Trap(name="filter by info/attributes", plant=_info_attribute, fall=_run("add a.txt")),
    Trap(name="filter by core.attributesFile", plant=_attributes_file, fall=_run("add a.txt")),
    Trap(
        name="merge driver",
        plant=_attribute("merge=x", merge__x__driver="PROGRAM"),
        fall=_merge,
    ),
    Trap(name="include.path", plant=_include("include"), fall=_run("status")),
    Trap(name="includeIf", plant=_include('includeIf "gitdir:/**"'), fall=_run("status")),
    Trap(name="config.worktree", plant=_worktree_config, fall=_run("status")),
    Trap(name="gpg.program", plant=_config(commit__gpgSign="true", gpg__program="PROGRAM"), fall=_run("commit -am x")),
    Trap(
        name="gpg.ssh.defaultKeyCommand",
        plant=_config(commit__gpgSign="true", gpg__format="ssh", gpg__ssh__defaultKeyCommand="PROGRAM"),
        fall=_run("commit -am x"),
    ),
    Trap(name="log.showSignature", plant=_signed, fall=_run("log")),
    Trap(name="core.editor", plant=_config(core__editor="PROGRAM"), fall=_run("commit -a")),
    Trap(name="sequence.editor", plant=_config(sequence__editor="PROGRAM"), fall=_run("stash", "rebase -i HEAD~1")),
    Trap(name="core.sshCommand", plant=_config(core__sshCommand="PROGRAM"), fall=_run("fetch ssh://localhost/x")),
    Trap(name="core.gitProxy", plant=_config(core__gitProxy="PROGRAM"), fall=_run("fetch git://localhost/x")),
    Trap(
        name="remote ext::",
        plant=_config(remote__origin__url="ext::PROGRAM", protocol__ext__allow="always"),
        fall=_run("push origin main"),
    ),
    Trap(
        name="url insteadOf",
        plant=_config(
            url__safe__pushInsteadOf="https://",
            remote__origin__url="https://x",
            remote__origin__pushurl="ext::PROGRAM",
            protocol__ext__allow="always",
        ),
        fall=_run("push origin main"),
    ),
    Trap(
        name="remote uploadpack",
        plant=_config(remote__origin__url=".", remote__origin__uploadpack="PROGRAM"),
        fall=_run("fetch origin"),
    ),
    Trap(
        name="remote receivepack",
        plant=_config(remote__origin__url=".", remote__origin__receivepack="PROGRAM"),
        fall=_run("push origin main"),
    ),
    Trap(name="alias", plant=_config(alias__control="!PROGRAM"), fall=_run("control")),
    Trap(name="credential.helper", plant=_config(credential__helper="!PROGRAM"), fall=_credential),
    Trap(name="core.askPass", plant=_config(core__askPass="PROGRAM"), fall=_credential),
    Trap(
        name="trailer command",
        plant=_config(trailer__x__key="X", trailer__x__command="PROGRAM"),
        fall=_run("commit -am x --trailer x=1"),
    ),
    Trap(name="difftool", plant=_config(diff__tool="x", difftool__x__cmd="PROGRAM"), fall=_run("difftool --no-prompt")),
    Trap(name="tar command", plant=_config(tar__x__command="PROGRAM"), fall=_run("archive --format=x HEAD")),
    Trap(name="submodule fsmonitor", plant=_nested, fall=_run("status")),
    Trap(name="core.alternateRefsCommand", plant=_alternate_refs, fall=_run(_LOCAL_PUSH), refusal="alternates line 1"),
    Trap(name="alternates", plant=_alternates, fall=_read_borrowed, refusal="alternates line 1"),
    Trap(
        name="promisor remote",
        plant=_partial,
        fall=_run("cat-file -p 1111111111111111111111111111111111111111"),
        refusal="it is a partial clone",
    ),
    Trap(name="linked .git", plant=_linked, fall=_run("status"), refusal="leads elsewhere"),
    Trap(name="core.worktree", plant=_worktree_outside, fall=_see_outside("checkout -f main")),
    Trap(
        name="refs outside",
        plant=_move_out("refs/heads/agent"),
        fall=_see_outside("branch agent/control"),
        refusal="refs/heads/agent is no plain folder",
    ),
    Trap(
        name="objects outside",
        plant=_move_out("objects"),
        fall=_see_outside("add a.txt"),
        refusal="objects is no plain folder",
    ),
    Trap(name="replaced commit", plant=_replace, fall=_see_forged),
    Trap(name="grafted commit", plant=_graft, fall=_see_forged),
    Trap(name="pipe for refs", plant=_pipe, fall=_hang, refusal="packed-refs is no plain file"),
)
