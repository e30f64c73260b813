"""The estimate of what a step takes, and what there is to take from."""

import ctypes
import gc
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, meshes, straight
from torchdismech.model import step_memory
from torchdismech.system import memory

PEAK = Path("/proc/self/clear_refs")  # writing 5 lets the peak of the process begin anew


def rods():
    """Return a rod of 101 nodes for any batch."""
    points, gravity = straight((0, 0, 0), (1, 0, 0), 101), forces.Gravity((0, 0, -9.81))
    return rod_through(points, Circle(1e-2), Material(1e6, 1000.0), [gravity]).finalize()


def plates(bending: str):
    """Return a plate of 441 nodes for any batch."""
    mesh = meshes.rectangle(0.4, 0.4, 0.02, "right")
    builder = RobotBuilder()
    builder.add_shell(mesh.nodes, mesh.triangles, 2e-3, Material(1e7, 1200.0, 0.3), bending)
    builder.clamp(nodes=np.flatnonzero(mesh.nodes[:, 0] < 1e-9).tolist())
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    return builder.finalize()


ROBOTS = {
    "rods": (rods, 256),
    "hinge": (lambda: plates("hinge"), 16),
    "midedge": (lambda: plates("midedge"), 16),
}


def status(name: str) -> int:
    """Return a size of this process in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def growth(function) -> int:
    """Return by how many bytes the process grows, at its peak, while the function runs."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before would be used again unseen
    PEAK.write_text("5", encoding="ascii")
    before = status("VmRSS")
    function()
    return status("VmHWM") - before


@pytest.mark.skipif(not PEAK.exists(), reason="the system does not tell a peak that begins anew")
@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", ROBOTS)
def test_the_estimate_is_near_what_a_step_takes(name, gradient):
    """Be no less than half of what a step takes, with a backward pass a third, and no more than three times as much.

    Found without a backward pass: 0.49 to 0.73 of the estimate, which was made when torch evaluated the springs.
    """
    make, batch = ROBOTS[name]
    model = make()
    integrator = ImplicitEuler(1e-2, relative_tolerance=1e-6, chunk=None)
    state, _ = integrator.step(model, model.initial_state(batch=batch))  # what is made once is there now

    def step():
        velocity = state.velocity.clone().requires_grad_(gradient)
        after, _ = integrator.step(model, state.replace(velocity=velocity))
        if gradient:
            after.q.sum().backward()

    estimate, most = step_memory.step_bytes(model, batch), 3 if gradient else 2
    solver = model.solvers.of(batch)
    kept = solver.memory(batch) if solver.name == "banded" else 0  # of the factor before, which the step works in
    assert estimate / 3 < growth(step) + kept < estimate * most


def test_a_batch_of_parts_takes_no_more_than_a_part():
    """Step many robots in parts: besides the states, that takes what one part takes."""
    if not PEAK.exists():
        pytest.skip("the system does not tell a peak that begins anew")
    model = rods()
    integrator = ImplicitEuler(1e-2, relative_tolerance=1e-6, chunk=64)
    state, _ = integrator.step(model, model.initial_state(batch=512))
    states = 2 * sum(t.numel() * t.element_size() for t in state.fields())  # the parts' and the whole's
    taken = growth(lambda: integrator.step(model, state))
    assert taken < states + 2 * step_memory.step_bytes(model, 64) < 0.5 * step_memory.step_bytes(model, 512)


def test_what_is_free_is_no_more_than_there_is():
    """Find some memory free, and no more than the machine has."""
    free = memory.available_bytes(torch.device("cpu"))
    assert 0 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_limits_of_containers_count(tmp_path):
    """Count what a control group leaves, files in memory as free; no limit is none."""
    assert memory._free_in_groups(tmp_path) == []
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._free_in_groups(tmp_path) == []
    (tmp_path / "memory.max").write_text("1000\n")
    assert memory._free_in_groups(tmp_path) == [300]
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 120\nactive_file 30\n")
    assert memory._free_in_groups(tmp_path) == [450]


@pytest.mark.parametrize(
    ("base", "limit", "used", "line"),
    [
        (".", "memory.max", "memory.current", "0::/jobs/one/step\n"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "9:name=systemd:/\n4:memory:/jobs/one/step\n"),
    ],
)
def test_limits_of_jobs_count(base, limit, used, line, tmp_path):
    """Count what the process's own group leaves, and the groups around it; not others beside it."""
    for name, most in (("jobs/one/step", 2000), ("jobs/one", 1000), ("jobs/two", 800)):
        group = tmp_path / base / name
        group.mkdir(parents=True, exist_ok=True)
        (group / limit).write_text(f"{most}\n")
        (group / used).write_text("700\n")
    own = tmp_path / "own"
    own.write_text(line)
    assert memory._free_in_groups(tmp_path, own) == [300, 1300]


@pytest.mark.parametrize(("size", "text"), [(2048, "2 KiB"), (5e6, "4.77 MiB"), (3 * 2**40, "3.07e+03 GiB")])
def test_sizes_are_for_people(size, text):
    """Write sizes in the unit that suits them."""
    assert memory.size_of(size) == text
