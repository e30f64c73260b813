"""The memory that is available, and numbers of bytes as text."""

from __future__ import annotations

import os
from pathlib import Path

import torch

__all__ = ["available_bytes", "size_of"]


def available_bytes(device: torch.device) -> int:
    """Return the free memory of a device [bytes]; for a CPU that of the system, within the limits of its cgroups."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return min([_free_in_system(), *_free_in_groups()])


def size_of(size: float) -> str:
    """Return a number of bytes as text such as "1.5 GiB"."""
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1000 or unit == "GiB":
            break
    return f"{size:.3g} {unit}"


def _free_in_system() -> int:
    """Return the bytes that the system has available; half of its memory where /proc/meminfo does not say."""
    table = Path("/proc/meminfo")
    if table.exists():
        for line in table.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _free_in_groups(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Return for each memory limit of the process's control groups, and those around them, the bytes left below it.

    Groups are those of containers, of jobs of a cluster, of services.

    Parameters
    ----------
    root : where groups are found.
    own : file that says which ones are the process's.
    """
    lines = own.read_text(encoding="utf-8").splitlines() if own.exists() else []
    names = ["", *(line.split(":", 2)[2].lstrip("/") for line in lines)]  # inside a container its group is the root
    free = []
    for base, limit, used in (
        (root, "memory.max", "memory.current"),
        (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        around = {group for name in names for group in (base / name, *(base / name).parents)}
        for group in sorted(group for group in around if group.is_relative_to(base)):
            if (group / limit).exists() and (group / used).exists():
                most = (group / limit).read_text(encoding="ascii").strip()
                if most != "max":
                    taken = int((group / used).read_text(encoding="ascii"))
                    free.append(max(0, int(most) - taken + _reclaimable(group / "memory.stat")))
    return free


def _reclaimable(table: Path) -> int:
    """Return the bytes of file cache that count against a control group, but that it would give up."""
    lines = table.read_text(encoding="ascii").splitlines() if table.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.split()[0] in ("inactive_file", "active_file"))
