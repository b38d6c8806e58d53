"""Name what is run by others than its author: git, editors, shells and agents do what stands in these files.

Whoever works in a folder runs them, often without knowing. So the tools `files.*` neither read nor change them, and a
program in a sandbox cannot change or make them where it may write.
"""

from typing import Final

# An empty one has no effect, so a sandbox is shown one where there is none.
GUARDED_FOLDERS: Final = (".git", ".husky", ".idea", ".vscode")
GUARDED_NAMES: Final = frozenset(
    {
        *GUARDED_FOLDERS, ".bash_login", ".bash_profile", ".bashrc", ".claude", ".cursor", ".envrc", ".gitmodules",
        ".mcp.json", ".npmrc", ".profile", ".zlogin", ".zprofile", ".zshenv", ".zshrc",
    }
)  # fmt: skip
