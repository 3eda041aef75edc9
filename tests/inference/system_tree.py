"""Writes the files by which Linux tells a process its control groups."""

from collections.abc import Mapping
from pathlib import Path


def system_tree(
    root: Path, groups: str, top: str, files: Mapping[str, str], kind: str = "cgroup2 cgroup2 rw,nsdelegate"
) -> Path:
    """Write `/proc/self/cgroup` and `mountinfo`, and files of one hierarchy, below `root`; returns `root`.

    Args:
        groups: what `/proc/self/cgroup` holds.
        top: the root of the mount, as mountinfo spells it.
        files: by their path below the mount, which is at /sys/fs/cgroup/it.
        kind: file system, source and options of the mount.
    """
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(groups + "\n")
    (root / "proc/self/mountinfo").write_text(
        "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
        "31 23 0:28 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n"
        f"32 31 0:29 {top} /sys/fs/cgroup/it rw,relatime shared:9 master:2 - {kind}\n"
    )
    for name, text in files.items():
        file = root / "sys/fs/cgroup/it" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root
