"""Control groups as files: what is written into which, and what is read from them."""

from pathlib import Path

from deputize.sandboxes.control_groups import ControlGroup
from deputize.sandboxes.port import SandboxLimits

LIMITS = SandboxLimits(memory_bytes=67_108_864, cpus=0.5, processes=32)


def test_a_group_of_version_2_has_all_limits_in_one_folder(tmp_path: Path) -> None:
    for name in ("memory.max", "memory.oom.group", "memory.swap.max", "pids.max", "cpu.max"):
        (tmp_path / name).touch()
    ControlGroup(folders=(tmp_path,)).set_limits(LIMITS)
    written = {each.name: each.read_text() for each in tmp_path.iterdir()}
    assert written == {
        "memory.max": "67108864",
        "memory.oom.group": "1",
        "memory.swap.max": "0",
        "pids.max": "35",
        "cpu.max": "50000 100000",
    }


def test_a_group_of_version_1_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    files = ("memory/memory.limit_in_bytes", "pids/pids.max", "cpu/cpu.cfs_period_us", "cpu/cpu.cfs_quota_us")
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    folders = tuple(tmp_path / each for each in ("memory", "pids", "cpu"))
    ControlGroup(folders=folders).set_limits(LIMITS)
    assert [(tmp_path / each).read_text() for each in files] == ["67108864", "35", "100000", "50000"]


def test_counters_say_what_the_kernel_killed_and_refused(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 2\noom_kill 3\noom_group_kill 1\n")
    (tmp_path / "pids.events").write_text("max 7\n")
    group = ControlGroup(folders=(tmp_path,))
    assert (group.count_memory_kills(), group.count_refused_processes()) == (3, 7)
