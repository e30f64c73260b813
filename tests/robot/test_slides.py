"""Nodes that slide along lines and in planes move as those along axes, and are held exactly."""

import numpy as np
import pytest
import torch

from tests.robot.sliding_arches import ANYHOW, INTEGRATORS, SLOPE, STIFFNESS, arch, moved
from torchdismech import (
    Circle,
    ImplicitEuler,
    InputError,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    forces,
    meshes,
    modes,
    straight,
)


@pytest.mark.parametrize("turn", [SLOPE, ANYHOW], ids=["45 degrees", "any"])
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_turned_scenes_move_as_those_along_axes(integrator, turn):
    """Move and pull at clamps as the same robots do whose line and plane are those of axes."""
    plain, sliding = moved(arch(), integrator), moved(arch(turn), integrator, turn=turn)
    # a residual of 1e-13 N over the arch's stiffness of 0.1 N/m in each of 12 steps; forces by stiffnesses of 1e4 N/m
    torch.testing.assert_close(sliding[0], plain[0], rtol=0, atol=1e-11)
    torch.testing.assert_close(sliding[1], plain[1], rtol=0, atol=1e-10)
    assert sliding[2] <= plain[2] + 2


@pytest.mark.parametrize("contact", ["floor", "rods", "constraints"])
def test_turned_contact_is_the_same(contact):
    """Touch a floor and another rod as the same robots along axes do, in as many iterations but with constraints."""
    plain = moved(arch(contact=contact), ImplicitEuler)
    sliding = moved(arch(ANYHOW, contact), ImplicitEuler, turn=ANYHOW)
    # as above; constraints hold gaps to 1e-9 m
    torch.testing.assert_close(sliding[0], plain[0], rtol=0, atol=1e-9 if contact == "constraints" else 1e-10)
    if contact != "constraints":  # where nodes slide along any line, steps are not tried by semismooth rounds first
        assert abs(sliding[2] - plain[2]) <= 4
    free = moved(arch(), ImplicitEuler)[0]
    assert (free - plain[0][:, :9]).abs().max() > 1e-4  # it does touch


@pytest.mark.parametrize("options", [{"mass": "consistent"}, {"solver": "dense"}, {"solver": "pcg"}], ids=str)
def test_turned_scenes_by_other_masses_and_solvers(options):
    """Be the same with masses that couple nodes, and by every kind of solver."""
    plain, sliding = moved(arch(**options), Newmark), moved(arch(ANYHOW, **options), Newmark, turn=ANYHOW)
    torch.testing.assert_close(sliding[0], plain[0], rtol=0, atol=1e-11)  # as above


def test_a_side_of_a_shell_slides():
    """Be the same for a sheet whose side slides in a plane."""
    sheet, found = meshes.rectangle(0.3, 0.2, 0.05), []
    left, right = (np.flatnonzero(np.abs(sheet.nodes[:, 0] - x) < 1e-9).tolist() for x in (0.0, 0.3))
    for turn in (None, ANYHOW):
        whole = np.eye(3) if turn is None else turn
        builder = RobotBuilder()
        builder.add_shell(sheet.nodes @ whole.T, sheet.triangles, 2e-3, Material(1e6, 1000.0, 0.3), bending="midedge")
        builder.clamp(nodes=left)
        builder.clamp(nodes=right, **({"axes": "z"} if turn is None else {"normal": whole[:, 2]}))
        builder.add_force(forces.Gravity(tuple(whole @ (0, 0.5, -5.0))))
        found.append(moved(builder.finalize(compile=False), ImplicitEuler, 5, turn)[0])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-11)  # as above


def test_planar_robots_slide_in_their_plane():
    """Be the same for a robot of the x-z plane."""
    found = []
    for turn in (np.eye(3), SLOPE):
        builder = RobotBuilder(planar=True)
        builder.add_rod(straight((0, 0, 0), turn[:, 0], 8), Circle(0.01), Material(1e6, 1000.0))
        builder.clamp(nodes=[0])
        builder.clamp(nodes=[7], along=turn[:, 0])
        builder.add_force(forces.Gravity(tuple(turn @ (-1, 0, -5))))
        model = builder.finalize(compile=False)
        found.append((model, moved(model, Newmark, turn=turn)[0]))
    assert found[0][0].unknowns.slides.none and found[1][0].unknowns.slides.n_idle_unknowns == 1
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=1e-11)  # as above


def test_nodes_stay_on_their_lines_and_are_pushed_across_alone():
    """Stay on line and plane to rounding, and feel nothing along; reactions carry what gravity leaves."""
    model = arch(ANYHOW)
    line, normal = (torch.as_tensor(ANYHOW[:, k]) for k in range(2))
    state = model.initial_state()
    rest, euler = state.positions, ImplicitEuler(0.01)
    for _ in range(40):
        before = state
        state, _ = euler.step(model, before, throw=True)
    way = state.positions - rest
    off = way[:, 8] - (way[:, 8] @ line)[:, None] * line
    # 40 steps of rounding of positions of 1 m
    assert off.abs().max() < 1e-14 and (way[:, 4] @ normal).abs().max() < 1e-14
    assert (way[:, 8] @ line).abs().min() > 1e-3
    _, end, middle = euler.reactions(model, before, state)[..., :3].unbind(1)
    # rounding of the forces of edges, 10 N
    assert (end @ line).abs().max() < 1e-13 and torch.linalg.vector_norm(end, dim=1).min() > 1e-3
    torch.testing.assert_close(middle, (middle @ normal)[:, None] * normal, rtol=0, atol=1e-13)


def test_an_equilibrium_and_its_modes():
    """Hang and vibrate as along axes, all modes of it; stability is told."""
    found = []
    for turn in (None, ANYHOW):
        model = arch(turn)
        state, info = Static(force_tolerance=1e-12).step(model, model.initial_state(), throw=True)
        most = model.unknowns.count - model.unknowns.slides.n_idle_unknowns
        back = torch.eye(3, dtype=torch.float64) if turn is None else torch.as_tensor(turn)
        found.append((state.positions @ back, modes(model, state, most).eigenvalue, info.stable))
        with pytest.raises(InputError, match=f"from 1 to {most}"):
            modes(model, state, most + 1)
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=1e-9)  # 1e-12 N over 0.01 N/m
    # rounding of the largest, and that of positions times what the stiffness changes with them
    assert (found[1][1] - found[0][1]).abs().max() < 1e-8 * found[0][1].max()
    torch.testing.assert_close(found[1][1][:, :8], found[0][1][:, :8], rtol=1e-7, atol=0)
    assert bool(found[0][2].all()) and bool(found[1][2].all())


def test_each_robot_of_a_batch_moves_as_alone():
    """Move each robot as the model of its own constants does."""
    together = moved(arch(ANYHOW), Newmark)[0]
    for k in range(2):
        alone = moved(arch(ANYHOW, youngs=STIFFNESS[k, 0]), Newmark)[0]
        torch.testing.assert_close(together[k : k + 1], alone, rtol=0, atol=1e-12)  # rounding of sums


def test_first_accelerations_are_along_lines_whatever_the_masses():
    """Set another mass along x of a node that slides obliquely, beside masses that are coupled."""
    model = arch(ANYHOW, mass="consistent")
    model.body.mass[..., 3 * 8] *= 2.0
    acceleration, line = model.initial_state().acceleration[:, 3 * 8 : 3 * 9], torch.as_tensor(ANYHOW[:, 0])
    across = acceleration - (acceleration @ line)[:, None] * line
    assert across.abs().max() < 1e-9 * acceleration.abs().max()


def test_models_may_have_been_in_single_precision():
    """Take steps of a model that was converted and is in double precision again; rounded lines let none converge."""
    model = arch(ANYHOW).float()
    ImplicitEuler(0.01).step(model, model.initial_state(), throw=True)
    plain, sliding = moved(arch(), ImplicitEuler), moved(model.double(), ImplicitEuler, turn=ANYHOW)
    torch.testing.assert_close(sliding[0], plain[0], rtol=0, atol=1e-4)  # sizes and stiffnesses stay rounded


def test_recorded_steps_are_those_that_are_not():
    """Take steps that are recorded with every bit of those that are not."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    model, euler = arch(ANYHOW), ImplicitEuler(0.005)
    state = other = model.initial_state()
    for _ in range(30):
        state, _ = euler.step(model, state, throw=True)
        with Watched():
            other, _ = euler.step(model, other, throw=True)
    assert torch.equal(state.q, other.q)


@pytest.mark.slow
def test_compiled_steps_are_those_that_are_not():
    """Take the same steps compiled."""
    found = []
    for compiled in (False, True):
        model = arch(ANYHOW, compile=compiled)
        found.append(moved(model, Newmark)[0])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-12)  # rounding of sums
