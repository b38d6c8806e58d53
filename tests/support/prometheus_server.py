"""A real Prometheus for tests, on a port of its own, that scrapes every second and is gone with the block."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proofs.kit.reserved_port import reserve_port


@contextmanager
def run_prometheus(folder: Path, target: str, rules: Path) -> Iterator[str]:
    """Run a Prometheus that scrapes a target (`host:port`) and evaluates rules; give its URL, which answers soon."""
    program = shutil.which("prometheus")
    assert program, "these tests need prometheus: apt-get install -y prometheus"
    port = reserve_port()
    settings = folder / "prometheus.yml"
    settings.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{rules}']\n"
        f"scrape_configs: [{{job_name: deputize, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    arguments = [
        f"--config.file={settings}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([program, *arguments], stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()
