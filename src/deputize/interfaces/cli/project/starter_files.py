"""List the files that `deputize init` copies into a new project."""

from pathlib import Path

_STARTER = Path(__file__).parent / "starter"
_DEFAULT_POLICIES = Path(__file__).parents[3] / "govern" / "policy" / "defaults" / "default.cedar"

# The starter's gitignore has no dot, which would hide it inside the package.
STARTER_FILES = {
    _STARTER / "deputize.toml": "deputize.toml",
    _STARTER / "tools/hello.py": "tools/hello.py",
    _DEFAULT_POLICIES: "policies/default.cedar",
    _STARTER / "policies/tests/default.yaml": "policies/tests/default.yaml",
    _STARTER / "gitignore": ".gitignore",
}
"""Each file of the package, with its path in the new project."""
