"""List what outsiders depend on by name: routes, errors, metrics and commands.

`python -m tests.checks.public_interface` writes the baseline, `public_interface.json`. A change of it needs a line in
CHANGELOG.md.
"""

import json
from pathlib import Path

from deputize.core.errors import list_problem_types
from deputize.core.telemetry import Metric
from docs import generate

BASELINE = Path(__file__).with_name("public_interface.json")


def list_public_names() -> dict[str, list[str]]:
    """List the names as the code has them now."""
    paths = generate.build_api_document()["paths"]
    return {
        "routes": sorted(f"{path} {' '.join(sorted(operations))}" for path, operations in paths.items()),
        "errors": sorted(f"{problem.spec.e_number} {problem.spec.slug}" for problem in list_problem_types()),
        "metrics": sorted(Metric),
        "commands": sorted(name for name, _ in generate.walk_commands()),
    }


if __name__ == "__main__":
    BASELINE.write_text(json.dumps(list_public_names(), indent=0) + "\n", encoding="utf-8")
