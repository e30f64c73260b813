"""Each shell of a batch is on its own."""

import pytest
import torch

from tests import shells
from torchdismech import (
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    Status,
    forces,
)

INTEGRATORS = {
    "euler": ImplicitEuler(0.005),
    "midpoint": ImplicitMidpoint(0.002),
    "newmark": Newmark(0.002),
    "static": Static(),
}


def patch(bending, rows=slice(None), in_fluid=True):
    """Return a model of three shells of unlike thickness, stiffness, density, gravity and fluid, or some of these."""

    def of_robots(*values):
        return torch.tensor(values, dtype=torch.float64)[:, None][rows]

    nodes, triangles = shells.patch()
    builder = RobotBuilder()
    material = Material(of_robots(1e6, 3e6, 5e5), of_robots(1000.0, 1500.0, 800.0), of_robots(0.3, 0.4, 0.1))
    builder.add_shell(nodes, triangles, of_robots(2e-3, 1e-3, 3e-3), material, bending)
    builder.clamp(nodes=triangles[-1].tolist())
    gravity = torch.tensor([[0, 0, -9.81], [0, 1, -5.0], [2.0, 0, 0]], dtype=torch.float64)[rows]
    builder.add_force(forces.Gravity(gravity))
    builder.add_force(forces.Buoyancy(gravity, of_robots(100.0, 200.0, 0.0)))
    if in_fluid:
        builder.add_force(forces.Drag(of_robots(100.0, 1.0, 10.0), of_robots(1.0, 2.0, 0.5)))
    builder.add_force(forces.Pressure(of_robots(1.0, -2.0, 0.0)))
    return builder.finalize()


def folded(model, rows=slice(None)):
    """Return natural hinge angles that differ from robot to robot."""
    own = model.natural_strains(1).natural_hinge_angle
    shift = torch.tensor([0.1, -0.05, 0.2], dtype=torch.float64)[:, None][rows]
    return Control(natural_hinge_angle=own[:1] + shift)


@pytest.mark.parametrize("bending", ["hinge", "midedge"])
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_row_is_the_robot_alone(integrator, bending):
    """Match each robot stepped alone."""
    rule, together = INTEGRATORS[integrator], patch(bending)
    alone = [patch(bending, [i]) for i in range(3)]
    state, states = together.initial_state(), [model.initial_state() for model in alone]
    for _ in range(10):
        state, info = rule.step(together, state, folded(together), throw=True)
        for i, model in enumerate(alone):
            states[i], own = rule.step(model, states[i], folded(model, [i]), throw=True)
            # steps are solved to 1e-8 of their forces: a rounding may decide about one iteration more
            assert (state.q[i] - states[i].q[0]).abs().max() < 1e-8
            assert abs(int(info.iterations[i]) - int(own.iterations[0])) <= 1


@pytest.mark.parametrize("bending", ["hinge", "midedge"])
def test_a_failing_row_leaves_the_others_alone(bending):
    """Report the failing robot, keep its last good state, and step the others as if it were not there."""
    model = patch(bending)
    control = folded(model)
    good, _ = ImplicitEuler(0.005).step(model, model.initial_state(), control)
    control.natural_hinge_angle[1, 2] = torch.nan
    state = model.initial_state()
    after, info = ImplicitEuler(0.005).step(model, state, control)
    assert info.status.tolist() == [Status.CONVERGED, Status.NOT_FINITE, Status.CONVERGED]
    assert torch.equal(after.q[1], state.q[1]) and after.time.tolist() == [0.005, 0, 0.005]
    # different sets of rows still iterate: rounding
    assert (after.q[[0, 2]] - good.q[[0, 2]]).abs().max() < 1e-12


@pytest.mark.parametrize("bending", ["hinge", "midedge"])
def test_compiled_kernels_give_the_same(bending):
    """Build the same model compiled, without compiling here: all its derivatives are in closed form."""
    model = patch(bending)
    assert model.mechanics.uncompiled_terms() == []


def test_natural_shapes():
    """Take the curved shape as built for the natural one, or none of it; and what the control sets."""
    nodes, triangles = shells.patch()
    for bending in ("hinge", "midedge"):
        strains = {}
        for natural in ("initial", "flat"):
            builder = RobotBuilder()
            builder.add_shell(nodes, triangles, 1e-3, Material(1e6, 1000.0, 0.3), bending, natural)
            model = builder.finalize()
            strains[natural] = model.energies(model.initial_state())[bending].item()
            own = model.strains(model.initial_state())
            if natural == "flat" and bending == "hinge":
                natural_now = Control(natural_hinge_angle=own["hinge_angle"])
                assert model.energies(model.initial_state(), natural_now)[bending].item() < 1e-30
        assert strains["initial"] < 1e-30 < 1e-8 < strains["flat"]


def test_prescribed_folding_is_followed():
    """Fold a free strip to the natural angles that a control sets, by hinges and by mid-edge normals alike."""
    length, angle = 0.02, 0.3
    x = torch.arange(5, dtype=torch.float64) * length
    nodes = torch.stack(
        [x.repeat(2), torch.tensor([0.0, 0.03], dtype=torch.float64).repeat_interleave(5), 0 * x.repeat(2)], 1
    )
    triangles = [[k, k + 1, k + 6] for k in range(4)] + [[k, k + 6, k + 5] for k in range(4)]
    for bending in ("hinge", "midedge"):
        builder = RobotBuilder()
        builder.add_shell(nodes.numpy(), triangles, 1e-3, Material(1e7, 1000.0, 0.3), bending)
        builder.clamp(nodes=[0, 1, 6], twist=False)  # holding the normal at (1, 6) would leave half of that fold
        model = builder.finalize()
        across = [k for k, (a, b) in enumerate(model.hinges[:, :2].tolist()) if abs(a - b) == 5]
        target = torch.zeros(1, len(model.hinges), dtype=torch.float64)
        target[0, across] = angle
        state, _ = Static(load_steps=4).step(
            model, model.initial_state(), Control(natural_hinge_angle=target), throw=True
        )
        e = state.positions[0, 1:5] - state.positions[0, :4]
        turned = torch.acos((e[1:] * e[:-1]).sum(-1) / length**2)
        # the strip is not stretched by such folds: each is met to rounding
        assert torch.allclose(turned, torch.full_like(turned, angle), rtol=0, atol=1e-6), bending
        assert state.positions[0, 4, 2] < 0  # bent as the outside of a ball seen from +z
