"""Planar robots: what is zero in their plane is left out of the code that is made of the formulas, and nothing else."""

import dataclasses
import math

import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    Rectangle,
    RobotBuilder,
    Status,
    forces,
    straight,
)
from torchdismech.elastic.fused import FusedTerm
from torchdismech.integrate import problem as problems
from torchdismech.integrate.recorded.recording import STEPS_BEFORE_RECORDING
from torchdismech.robot.kinematics import Frames
from torchdismech.robot.plane import Plane

STEPS = 18  # six more than are taken before steps are recorded
RUBBER = Material(youngs=2e5, density=1000.0, poisson=0.5)


def hanging(builder):
    """Add gravity, and a clamp at the first two nodes."""
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    return builder


def cantilever(section, director=None, y=0.0, **options):
    """Return a rod that hangs from its end, at this y."""
    builder = RobotBuilder(planar=True)
    along = straight((0, y, 0), (0.2, y, 0), 12)
    directors = None if director is None else [director] * 11
    builder.add_rod(along, section, dataclasses.replace(RUBBER, **options), directors=directors)
    return hanging(builder).finalize()


def swimmer():
    """Return a rod that is free, in a fluid."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0.05), 12), Circle(0.005), RUBBER)
    builder.add_force(forces.Resistive(0.5, 1.0))
    return builder.finalize()


def branches():
    """Return a rod with another one at its middle."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 11), Circle(0.005), RUBBER)
    builder.add_rod(straight((0.1, 0, 0), (0.15, 0, 0.1), 6), Circle(0.004), RUBBER)
    return hanging(builder).finalize()


MODELS = {
    "round": lambda: cantilever(Circle(0.005)),
    "beside the plane y = 0": lambda: cantilever(Circle(0.005), y=0.3),
    "flat, director across": lambda: cantilever(Rectangle(0.02, 0.004), (0, 1, 0)),
    "flat, director within": lambda: cantilever(Rectangle(0.02, 0.004), (0, 0, 1)),
    "damped": lambda: cantilever(Circle(0.005), relaxation_time=0.02),
    "free, in a fluid": swimmer,
    "branches": branches,
}
WITHIN, ACROSS = Plane.DIRECTORS_WITHIN, Plane.DIRECTORS_ACROSS


def run(model, integrator, batch=3, state=None, control=None):
    """Return what steps lead to, and how the last of them went."""
    state = model.initial_state(batch=batch) if state is None else state
    for _ in range(STEPS):
        state, info = integrator.step(model, state, control)
    assert info.converged.all()
    return [*state.fields(), info.iterations, info.residual]


def in_space(monkeypatch, *given, **options):
    """Return what `run` does where nothing is known of a plane."""
    with monkeypatch.context() as patch:
        patch.setattr(problems, "plane_of", lambda *_: None)
        return run(*given, **options)


def planes(model):
    """Return the planes that the recordings of a model are for."""
    return {kind.plane for kind in model.recordings if kind.recording is not None}


def assert_equal(found, expected):
    """Compare numbers: zeros have no signs."""
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("integrator", [ImplicitEuler, ImplicitMidpoint, Newmark])
@pytest.mark.parametrize("name", MODELS)
def test_no_number_is_another(monkeypatch, name, integrator):
    """Take steps to the bit as in space: what is left out are products with zeros."""
    model, other = MODELS[name](), MODELS[name]()
    found = run(model, integrator(5e-3))
    assert_equal(found, in_space(monkeypatch, other, integrator(5e-3)))
    # where rods meet, frames are at an angle, which is left to the formulas in space
    expected = None if name == "branches" else ACROSS if name.endswith("across") else WITHIN
    assert planes(model) == {expected} and planes(other) == {None}


@pytest.mark.parametrize("batch", [1, 37])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_number_of_robots(monkeypatch, batch, dtype):
    """Take one robot and many, in both precisions."""
    options = {"relative_tolerance": 1e-3} if dtype == torch.float32 else {}
    model, other = (MODELS["round"]().to(dtype) for _ in range(2))
    found = run(model, Newmark(5e-3, **options), batch)
    assert_equal(found, in_space(monkeypatch, other, Newmark(5e-3, **options), batch))
    assert planes(model) == {WITHIN}


def test_controls(monkeypatch):
    """Keep to the plane with curvatures at rest, and with clamps that move in it."""
    model, other = swimmer(), swimmer()
    curvature = torch.randn(3, 10, 2, dtype=torch.float64) * 0.05 * model.in_plane.curvatures[:10]
    control = Control(natural_curvature=curvature)
    assert_equal(
        run(model, Newmark(5e-3), control=control), in_space(monkeypatch, other, Newmark(5e-3), control=control)
    )
    assert planes(model) == {WITHIN}

    model, other = MODELS["round"](), MODELS["round"]()
    target = model.initial_state(batch=3).q
    target[:, 2:6:3] += 1e-3
    control = Control(clamped_q=target)
    assert_equal(
        run(model, Newmark(5e-3), control=control), in_space(monkeypatch, other, Newmark(5e-3), control=control)
    )
    assert planes(model) == {WITHIN}


def leaving(model, how):
    """Return a state that lies in no plane, or not with all its frames, and a control that leads out of it."""
    state, control = model.initial_state(batch=3), None
    if how == "one node of one robot":
        q = state.q.clone()
        q[1, 3 * 5 + 1] += 1e-9
        state = state.replace(q=q)
    elif how == "a twisted edge":
        q = state.q.clone()
        q[2, 3 * 12 + 4] += 0.3
        state = state.replace(q=q)
    elif how == "reference twist":
        state = state.replace(reference_twist=state.reference_twist + 2 * math.pi)
    elif how == "directors turned":
        turned = torch.tensor([0.0, math.sqrt(0.5), math.sqrt(0.5)], dtype=torch.float64)
        state = state.replace(director=turned.expand_as(state.director).contiguous())
    elif how == "one director turned by half a turn":
        director = state.director.clone()
        director[0, 5] *= -1
        state = state.replace(director=director)
    elif how == "a clamp that moves along y":
        target = state.q.clone()
        target[:, 1] += 1e-10  # more is refused
        control = Control(clamped_q=target)
    return state, control


@pytest.mark.parametrize(
    "how",
    [
        "one node of one robot",
        "a twisted edge",
        "reference twist",
        "directors turned",
        "one director turned by half a turn",
        "a clamp that moves along y",
    ],
)
def test_robots_in_no_plane(monkeypatch, how):
    """Leave nothing out where a robot of the batch is not in the plane, or does not stay there."""
    model, other = MODELS["round"](), MODELS["round"]()
    state, control = leaving(model, how)
    found = run(model, Newmark(5e-3), state=state, control=control)
    assert_equal(found, in_space(monkeypatch, other, Newmark(5e-3), state=state, control=control))
    assert planes(model) == {None}


def test_frames_that_meet_at_an_angle(monkeypatch):
    """Leave nothing out where frames are not aligned."""
    model = MODELS["round"]()
    run(model, Newmark(5e-3))
    model.alignments[0].fill_(0.1)
    other = MODELS["round"]()
    other.alignments[0].fill_(0.1)
    assert_equal(run(model, Newmark(5e-3)), in_space(monkeypatch, other, Newmark(5e-3)))
    assert planes(model) == {WITHIN, None}


def test_a_robot_that_leaves_its_plane_is_another_kind(monkeypatch):
    """Serve states in the plane and beside it in turns."""
    model, other = MODELS["round"](), MODELS["round"]()
    beside, _ = leaving(model, "one node of one robot")
    for state in (None, beside, None, beside):
        found = run(model, Newmark(5e-3), state=state)
        assert_equal(found, in_space(monkeypatch, other, Newmark(5e-3), state=state))
    assert planes(model) == {WITHIN, None}


def test_numbers_that_are_not_finite():
    """Fail as in space where a curvature out of the plane is not a number, before steps are recorded and after."""
    model = MODELS["round"]()
    curvature = torch.tensor([0.0, math.nan], dtype=torch.float64).expand(3, 10, 2).clone()
    state = model.initial_state(batch=3)
    for _ in range(STEPS):
        state, info = Newmark(5e-3).step(model, state, Control(natural_curvature=curvature))
        assert (info.status == Status.NOT_FINITE).all()


def test_states_that_are_written_to(monkeypatch):
    """See what numpy writes to a state, which torch does not count."""

    def thrown(model):
        state = model.initial_state(batch=3)
        for _ in range(STEPS):
            state, _ = Newmark(5e-3).step(model, state)
        state.q.numpy()[1, 3 * 5 + 1] += 5e-3
        return run(model, Newmark(5e-3), state=state)

    found = thrown(MODELS["round"]())
    monkeypatch.setattr(problems, "plane_of", lambda *_: None)
    assert_equal(found, thrown(MODELS["round"]()))


def test_gradients(monkeypatch):
    """Differentiate as in space, also by what is zero in the plane."""

    def gradients(model):
        state = model.initial_state(batch=2)
        leaves = [field.clone().requires_grad_() for field in (state.q, state.velocity, state.director)]
        state = state.replace(q=leaves[0], velocity=leaves[1], director=leaves[2])
        weight = torch.linspace(-1, 1, state.q.shape[1], dtype=torch.float64)
        for _ in range(2 * STEPS):
            state, _ = Newmark(5e-3).step(model, state)
        return torch.autograd.grad((state.q * weight).sum(), leaves)

    model = MODELS["flat, director within"]()
    found = gradients(model)
    with monkeypatch.context() as patch:
        patch.setattr(problems, "plane_of", lambda *_: None)
        expected = gradients(MODELS["flat, director within"]())
    assert_equal(found, expected)
    assert planes(model) == {WITHIN}


def test_what_is_left_out(monkeypatch):
    """Find forces and matrix of a bent rod by less than half of the operations."""
    counts, found = {}, FusedTerm.program

    def counted(self, term, q, constants, asked):
        program = found(self, term, q, constants, asked)
        if term.name == "bend_twist" and program is not None:
            counts[asked, constants.plane] = program[0].operations
        return program

    monkeypatch.setattr(FusedTerm, "program", counted)
    run(MODELS["round"](), Newmark(5e-3))
    in_space(monkeypatch, MODELS["round"](), Newmark(5e-3))
    for asked in ("gradient", "hessian"):
        assert counts[asked, WITHIN] < counts[asked, None] / 2


@pytest.mark.parametrize("name", ["round", "flat, director within"])
def test_frames_do_not_twist(monkeypatch, name):
    """Find no reference twist in recorded steps within a plane, where it stays zero."""
    model, integrator = MODELS[name](), Newmark(5e-3)
    state, asked, twists = model.initial_state(), [], Frames._reference_twist
    monkeypatch.setattr(Frames, "_reference_twist", lambda *given: asked.append(1) or twists(*given))
    for _ in range(STEPS):
        state, _ = integrator.step(model, state)
    assert len(asked) == STEPS_BEFORE_RECORDING
    assert not state.reference_twist.any()
