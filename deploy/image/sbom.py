"""Write the CycloneDX document of the image: every wheel with its hash, and every Debian package.

    python3 deploy/image/sbom.py ROOT DEPUTIZE_VERSION < requirements.txt > sbom.cdx.json

It has no time and no random number, so that equal images have equal documents.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any
from urllib.parse import quote


def describe_wheels(packages: Path, hashes: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Describe what pip installed, which is not always what was asked of it."""
    for folder in sorted(packages.glob("*.dist-info")):
        metadata = PathDistribution(folder).metadata
        name, version = metadata["Name"], metadata["Version"]
        purl = f"pkg:pypi/{name.lower().replace('_', '-').replace('.', '-')}@{version}"
        component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        digest = hashes.get(purl)
        # The hash of the wheel of Deputize would depend on how it was built; its commit is on the image.
        yield component | ({"hashes": [{"alg": "SHA-256", "content": digest}]} if digest else {})


def describe_debian_packages(controls: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(controls.iterdir()):
        control = HeaderParser().parsestr(file.read_text())
        name, version = control["Package"], control["Version"]
        purl = f"pkg:deb/debian/{name}@{quote(version)}?arch={control['Architecture']}&distro=debian-12"
        yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def read_hashes(requirements: Iterable[str]) -> dict[str, str]:
    """Read the hash of each wheel by its package URL."""
    pins = (line.split() for line in requirements if not line.startswith("#"))
    return {f"pkg:pypi/{pin.replace('==', '@')}": digest.rpartition(":")[2] for pin, digest in pins}


def main(root: Path, version: str) -> None:
    wheels = describe_wheels(root / "usr/local/lib/python3.11/dist-packages", read_hashes(sys.stdin))
    components = [*wheels, *describe_debian_packages(root / "var/lib/dpkg/status.d")]
    image = {"type": "container", "bom-ref": "image", "name": "deputize", "version": version}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": image},
        "components": components,
        "dependencies": [{"ref": "image", "dependsOn": sorted(each["bom-ref"] for each in components)}],
    }
    json.dump(document, sys.stdout, indent=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
