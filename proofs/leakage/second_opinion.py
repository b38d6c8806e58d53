"""Ask a secret scanner that shares no code with ours what it finds in files."""

import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from proofs.kit.sandbox import Sandbox

# Names alone and hexadecimal digits: ids, digests and redacted fields have both.
_DISABLED = ("HexHighEntropyString", "Base64HighEntropyString", "KeywordDetector", "IPPublicDetector")


async def count_findings(sandbox: Sandbox, files: Sequence[Path]) -> int:
    """Count what `detect-secrets` finds by the formats that it knows."""
    plugins = [word for plugin in _DISABLED for word in ("--disable-plugin", plugin)]
    argv = [sys.executable, "-m", "detect_secrets", "scan", "--all-files", "--no-verify", *plugins, *map(str, files)]
    result = await sandbox.run_command(argv, timeout=900)
    if result.code != 0:
        raise RuntimeError(f"detect-secrets failed: {result.stderr[-500:]}")
    findings = orjson.loads(result.stdout)["results"]
    for file, each in findings.items():
        sandbox.log(f"second opinion: {Path(file).name}: {[(item['type'], item['line_number']) for item in each[:5]]}")
    return sum(map(len, findings.values()))
