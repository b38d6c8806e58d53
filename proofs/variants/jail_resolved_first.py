"""Read a file as many servers do: resolve its path, compare it with the folder, then open it by its path."""

from pathlib import Path


def read_resolved(root: Path, path: str) -> bytes:
    """Read a file below a folder; between the comparison and the opening, its path can become another one."""
    resolved_path = (root / path).resolve()
    if not resolved_path.is_relative_to(root):
        raise PermissionError(f"{path} is outside of the folder")
    return resolved_path.read_bytes()
