"""Other devices and dtypes than float64 on the CPU."""

import copy

import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, meshes, straight
from torchdismech.contact import Barrier, Complementarity, Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.errors import InputError


def rods(**options):
    """Return a model of three rods that differ in stiffness, in a resistive fluid."""
    youngs = torch.tensor([[1e6], [2e6], [5e6]], dtype=torch.float64)
    points, loads = straight((0, 0, 0), (0.5, 0, 0), 21), [forces.Gravity((0, 0, -9.81)), forces.Resistive(0.1, 0.5)]
    return rod_through(points, Circle(5e-3), Material(youngs, 1000.0), loads).finalize(**options)


def hybrid(bending, **options):
    """Return a model of two shells with a rod each, falling through a fluid."""
    builder = RobotBuilder()
    youngs = torch.tensor([[1e6], [2e6]], dtype=torch.float64)
    sheet = meshes.rectangle(0.08, 0.06, 0.02)
    index = builder.add_shell(sheet.nodes, sheet.triangles, 2e-3, Material(youngs, 1000.0, 0.3), bending)
    end = sheet.nodes[index[-1]]
    builder.add_rod(straight(end, end + [0.06, 0.0, 0.02], 5), Circle(2e-3), Material(youngs, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.Drag(10.0, 1.0))
    return builder.finalize(**options)


# made anew for each model: a model takes its laws along to its device
RESPONSES = {
    "penalty": lambda: (Penalty(100.0, 1e-3), Friction(0.3, 1e-2)),
    "barrier": lambda: (Barrier(100.0, 1e-3), Friction(0.3, 1e-2)),
    "complementarity": lambda: (Complementarity(), Friction(0.3)),
}


def crossed(response, **options):
    """Return a model of three pairs of rods that fall across each other, between nodes, and on a floor.

    Where nodes cross nodes, rounding decides which edges touch.
    """
    builder = RobotBuilder()
    youngs = torch.tensor([[1e6], [2e6], [5e6]], dtype=torch.float64)
    for k, end in enumerate([(0.05, 0.0), (0.0, 0.05)]):
        (x, y), z = end, 4e-3 + 6e-3 * k
        aside = 5e-3 * k
        builder.add_rod(straight((aside - x, -y, z), (aside + x, y, z), 7), Circle(2e-3), Material(youngs, 1000.0))
    builder.add_force(forces.Gravity((0.3, 0, -9.81)))
    law = RESPONSES[response]()
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), *law, name="floor"))
    builder.add_contact(SelfContact(*law))
    return builder.finalize(**options)


def tips_after(model, steps=10, **options):
    """Return the tips (3, 3) after some steps."""
    state, integrator = model.initial_state(), ImplicitEuler(0.01, **options)
    for _ in range(steps):
        state, _ = integrator.step(model, state, throw=True)
    return state.positions[:, -1].double().cpu()


def test_float32_follows_float64():
    """Stay near the float64 run in float32."""
    single = tips_after(rods(dtype=torch.float32), force_tolerance=1e-4, relative_tolerance=1e-3)
    # stretch forces of EA = 400 N over edges of 25 mm resolve positions to about 1e-6 m a step in float32
    assert (single - tips_after(rods())).abs().max() < 1e-4


@pytest.mark.slow
def test_compiled_kernels_agree():
    """Take the same steps with compiled stencil kernels."""
    # compiled kernels contract and reorder products: rounding, amplified by the stiffness of the rod
    assert (tips_after(rods(compile=True)) - tips_after(rods())).abs().max() < 1e-9


@pytest.mark.slow
def test_compiled_copies_are_models_of_their_own():
    """Step a copy of a compiled model, also one whose axes are clamped differently, with constants of its own."""
    results = []
    for compiled in (True, False):
        builder = RobotBuilder(planar=True)
        builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 7), Circle(5e-3), Material(1e6, 1000.0))
        builder.clamp(nodes=[0, 1])
        builder.clamp(nodes=[6], axes="x")
        builder.add_force(forces.Gravity((0, 0, -9.81)))
        model = builder.finalize(compile=compiled)
        before = tips_after(model)
        twin = copy.deepcopy(model)
        twin.term("stretch").energy.EA.data *= 0.5
        twin.term("bend_twist").energy.EI1.data *= 0.5
        assert torch.equal(tips_after(model), before)
        results.append(torch.cat([before, tips_after(twin)]))
    assert (results[0][0] - results[0][1]).norm() > 1e-4
    assert (results[0] - results[1]).abs().max() < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("bending", ["hinge", "midedge"])
def test_compiled_shells_agree(bending):
    """Take the same steps with compiled kernels of hinges, mid-edge normals and joints."""
    compiled, eager = (tips_after(hybrid(bending, compile=c), steps=5) for c in (True, False))
    assert (compiled - eager).abs().max() < 1e-9


@pytest.mark.parametrize("bending", ["hinge", "midedge"])
def test_float32_shells_follow_float64(bending):
    """Stay near the float64 run in float32."""
    tolerances = {"force_tolerance": 1e-4, "relative_tolerance": 1e-3}
    single = tips_after(hybrid(bending, dtype=torch.float32), steps=5, **tolerances)
    # forces of 1e-4 N on nodes of 1 g move them by 1e-5 m a step of 10 ms
    assert (single - tips_after(hybrid(bending), steps=5)).abs().max() < 2e-4


@pytest.mark.parametrize("response", ["penalty", "barrier"])
def test_float32_contact_follows_float64(response):
    """Stay near the float64 run in float32 while rods fall on each other."""
    tolerances = {"force_tolerance": 1e-4, "relative_tolerance": 1e-3}
    single = tips_after(crossed(response, dtype=torch.float32), steps=6, **tolerances)
    # forces of 1e-4 N on nodes of .2 g move them by 5e-5 m a step of 10 ms
    assert (single - tips_after(crossed(response), steps=6)).abs().max() < 3e-4


def test_float32_constraints_are_refused():
    """Refuse contact without overlap in single precision."""
    with pytest.raises(InputError, match="Complementarity: .* float64, got torch.float32"):
        crossed("complementarity", dtype=torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("response", RESPONSES)
def test_contact_on_cuda_agrees(response):
    """Take the same steps on a CUDA device."""
    # where rods rest on each other, rounding decides whether a step is found whole or in halves, which differ by 5e-5 m
    options, within = ({"max_substeps": 8}, 1e-4) if response == "complementarity" else ({}, 1e-8)
    found = tips_after(crossed(response, device="cuda"), steps=6, **options)
    assert (found - tips_after(crossed(response), steps=6, **options)).abs().max() < within


@pytest.mark.gpu
@pytest.mark.parametrize("bending", ["hinge", "midedge"])
def test_shells_on_cuda_agree(bending):
    """Take the same steps on a CUDA device."""
    found = tips_after(hybrid(bending, device="cuda"), steps=5)
    assert (found - tips_after(hybrid(bending), steps=5)).abs().max() < 1e-9


@pytest.mark.gpu
@pytest.mark.parametrize("solver", ["auto", "banded", "multifrontal", "dense"])
def test_cuda_agrees(solver):
    """Take the same steps on a CUDA device."""
    assert (tips_after(rods(device="cuda", solver=solver)) - tips_after(rods())).abs().max() < 1e-9
