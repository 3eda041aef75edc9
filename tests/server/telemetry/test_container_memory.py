"""The container's memory, of a cgroup made of files."""

from pathlib import Path

import pytest

from milkweed.server.telemetry.container_memory import ContainerMemory, collect_container_memory, container_memory


def cgroup(folder: Path, limit: str = "2147483648", used: str = "1000000000", inactive: str = "300000000") -> Path:
    (folder / "memory.max").write_text(limit + "\n")
    (folder / "memory.current").write_text(used + "\n")
    (folder / "memory.stat").write_text(f"anon 600000000\nfile 400000000\ninactive_file {inactive}\nactive_file 1\n")
    return folder


def test_files_that_nobody_reads_do_not_count(tmp_path: Path) -> None:
    assert container_memory(cgroup(tmp_path)) == ContainerMemory(700_000_000, 2 << 30)
    # the two are read one after the other
    assert container_memory(cgroup(tmp_path, used="5", inactive="7")) == ContainerMemory(0, 2 << 30)


def test_both_are_metrics(tmp_path: Path) -> None:
    found = {family.name: family.samples[0].value for family in collect_container_memory(cgroup(tmp_path))}
    assert found == {
        "milkweed_container_memory_working_set_bytes": 700_000_000,
        "milkweed_container_memory_limit_bytes": 2 << 30,
    }


@pytest.mark.parametrize(("limit", "used"), [("max", "1"), ("many", "1"), ("1000", ""), ("", "1")])
def test_without_a_limit_there_is_none(tmp_path: Path, limit: str, used: str) -> None:
    assert container_memory(cgroup(tmp_path, limit, used)) is None
    assert list(collect_container_memory(tmp_path)) == []


def test_elsewhere_there_is_none(tmp_path: Path) -> None:
    assert container_memory(tmp_path / "none") is None
