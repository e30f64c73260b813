"""What is refused of arms and their steps, and what is warned of."""

import math
import warnings

import numpy as np
import pytest
import torch

from tests.constant_curvature.arms import DT, incline, paper_arm, pushed, run
from torchdismech import Control, InputError, Static, rollout
from torchdismech.constant_curvature import ArmIntegrator, PneumaticArm
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, Path, Penalty, Sphere
from torchdismech.errors import Status
from torchdismech.solve.complementarity import solve_contact


def test_arms_in_millimetres_are_warned_of():
    """Warn of an arm of 300 m."""
    with pytest.warns(UserWarning, match="pneumatic arms: they are 300 m long. If lengths are in millimetres"):
        PneumaticArm([150.0, 150.0], 0.1, 0.04, 265.0)


def test_controls_that_are_not_finite_are_named():
    """Say which robot's forces hold NaN."""
    arm, control = paper_arm(), pushed(2)
    control.force[1, 4] = math.nan
    with pytest.warns(RuntimeWarning, match="Control.force of robot 1 at t = 0 s holds NaN"):
        _, info = ArmIntegrator(DT).step(arm, arm.initial_state(2), control)
    assert info.status.tolist() == [Status.CONVERGED, Status.NOT_FINITE]


def test_beginning_inside_of_an_obstacle_is_warned_of():
    """Begin with the last plate 50 mm inside of a face, or of a ball that a path carries there; not beside them."""
    floor = HalfSpace((0.0, 0.0, -0.40), (0.0, 0.0, 1.0))
    deep = paper_arm([Obstacle(floor, Complementarity(), name="floor")])
    with pytest.warns(RuntimeWarning, match=r"'floor' \(HalfSpace\): plate 11 of robot 0 begins inside .* 0.05 m deep"):
        rollout(deep, deep.initial_state(), ArmIntegrator(DT), 1)
    carried = Path([0.0, 1.0], [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    ball = Obstacle(Sphere((0.0, 0.0, -0.95), 0.1), Complementarity(), path=carried, name="ball")
    arm = paper_arm([ball])
    later = arm.initial_state().replace(time=torch.tensor([0.45], dtype=torch.float64))
    with pytest.warns(RuntimeWarning, match="'ball' .* 0.05 m deep"):
        ArmIntegrator(DT).prepare(arm, later, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ArmIntegrator(DT).prepare(arm, arm.initial_state(), 1)


def test_states_begin_where_lists_say():
    """Give elongations as a list and rates as an array: in the arm's dtype, for as many robots as there are rows."""
    state = paper_arm().initial_state(q=[0.01] * 9, velocity=np.full((2, 9), 0.1, dtype=np.float32))
    assert state.q.dtype == state.velocity.dtype == torch.float64 and state.q.shape == (2, 9)
    assert (state.q == 0.01).all()


BALL = Obstacle(Sphere((0.0, 0.0, -0.6), 0.05), Complementarity(), Friction(0.5), name="ball")
FAR_BALL = Obstacle(Sphere((0.0, 0.0, -9.0), 0.05), Complementarity(method="gauss_seidel"), Friction(0.5), name="far")


REFUSED = {
    "one obstacle alone": (
        lambda: paper_arm(incline(45.0)),
        "obstacles: expected a list of contact.Obstacle, also of one alone, got Obstacle",
    ),
    "one mass in a list": (
        lambda: PneumaticArm([0.1, 0.1], [0.1], 0.04, 265.0),
        r"mass: expected a number, \(2,\), \(B, 1\) or \(B, 2\), got shape \(1,\)",
    ),
    "a section without length": (
        lambda: paper_arm().initial_state(q=[0.0] * 3 + [-0.2] * 3 + [0.0] * 3),
        "initial_state: q: .* section 1 of robot 0 is -0.05 m long",
    ),
    "a rotation matrix": (
        lambda: paper_arm(orientation=torch.diag(torch.tensor([1.0, -1.0, -1.0]).double())),
        "PneumaticArm.orientation: expected a rotation vector .* got what looks like a rotation matrix",
    ),
    "an orientation in degrees": (
        lambda: paper_arm(orientation=(0.0, 180.0, 0.0)),
        "PneumaticArm.orientation: expected a turn or less, .* got 180: see math.radians",
    ),
    "lengths in single precision": (
        lambda: PneumaticArm(torch.tensor([0.15]), 1.0, 0.04, 265.0),
        "PneumaticArm: expected all constants in one dtype, got length in torch.float32; mass, .* tensor.double",
    ),
    "a stiffness with gradients": (
        lambda: PneumaticArm([0.15], 1.0, 0.04, torch.tensor(265.0).double().requires_grad_()),
        "PneumaticArm.stiffness: got a tensor that requires gradients.* or give an nn.Parameter, which an arm keeps",
    ),
    "shape of one": (lambda: paper_arm().shape(torch.zeros(9).double()), r"q: expected a tensor of shape \(B, 9\)"),
    "potential of one": (lambda: paper_arm().potential(torch.zeros(9).double()), r"q: expected a tensor of shape"),
    "masses of one": (lambda: paper_arm().mass_matrix(torch.zeros(9).double()), r"q: expected a tensor of shape"),
    "forces of others": (
        lambda: paper_arm().inverse_dynamics(*(torch.zeros(1, n).double() for n in (9, 8, 9))),
        r"velocity: expected a tensor of shape \(B, 9\), got \(1, 8\)",
    ),
    "text for directions": (
        lambda: ArmIntegrator(DT, directions="8"),
        "directions: expected a whole number from 4 up, got '8'",
    ),
    "directions of sweeps": (
        lambda: run(paper_arm([FAR_BALL]), 1, directions=16),
        "directions, or a pyramid as cone: gauss_seidel, the method of an obstacle's response, has none",
    ),
    "a pyramid of sweeps": (
        lambda: run(paper_arm([FAR_BALL]), 1, cone="pyramid"),
        "directions, or a pyramid as cone: gauss_seidel, the method of an obstacle's response, has none",
    ),
    "the base of no robots": (
        lambda: paper_arm(base=torch.zeros(0, 3).double()),
        r"base: expected numbers of at least one robot, got shape \(0, 3\)",
    ),
    "text for a solver": (
        lambda: ArmIntegrator(DT, solver="lcp"),
        "solver: expected a function of W, b, mu and active, got str",
    ),
    "what a solver returned": (
        lambda: run(paper_arm([incline(45, height=-0.45)]), 1, solver=lambda delassus, start, mu, active: start),
        "solver: expected to return a solve.complementarity.ContactSolution, got Tensor",
    ),
    "Static": (
        lambda: Static().step(paper_arm(), paper_arm().initial_state()),
        r"that takes constant_curvature.ArmIntegrator \(and at rest: constant_curvature.equilibrium\)",
    ),
    "two chambers": (lambda: paper_arm(chambers=2), "chambers: expected a whole number from 3 up"),
    "no radius": (lambda: PneumaticArm([0.15], 1.0, 0.0, 265.0), "radius: expected a finite number above 0"),
    "no length": (lambda: PneumaticArm([0.15, 0.0], 1.0, 0.04, 265.0), "length: expected a finite number above 0"),
    "no mass": (lambda: PneumaticArm([0.15], -1.0, 0.04, 265.0), "mass: expected a finite number above 0"),
    "penalty": (
        lambda: paper_arm([Obstacle(Sphere((0, 0, 0), 0.1), Penalty(100.0, 1e-3), name="soft")]),
        "obstacle soft: .* expected the response Complementarity",
    ),
    "no obstacle": (lambda: paper_arm([Sphere((0, 0, 0), 0.1)]), "expected contact.Obstacle, got Sphere"),
    "twice a name": (lambda: paper_arm([BALL, BALL]), "a name of its own"),
    "friction": (lambda: Friction(-0.1), "Friction.coefficient: expected 0 or more"),
    "alpha 0": (lambda: ArmIntegrator(DT, stabilisation=0.0), "stabilisation: expected alpha above 0"),
    "alpha 2": (lambda: ArmIntegrator(DT, stabilisation=2.0), "stabilisation: expected alpha above 0"),
    "scheme": (lambda: ArmIntegrator(DT, scheme="rk4"), "scheme: expected one of 'implicit', 'explicit', 'rk23'"),
    "solver and cone": (lambda: ArmIntegrator(DT, cone="pyramid", solver=solve_contact), "leave them out beside a"),
    "solver and directions": (lambda: ArmIntegrator(DT, directions=4, solver=solve_contact), "leave them out beside a"),
    "q": (lambda: paper_arm().initial_state(q=torch.full((9,), math.nan)), "initial_state: q holds numbers that are"),
    "velocity": (
        lambda: paper_arm().initial_state(velocity=torch.full((2, 9), math.inf)),
        "initial_state: velocity holds numbers that are not finite",
    ),
    "size of q": (lambda: paper_arm().initial_state(q=torch.zeros(8)), r"initial_state: q has to be \(9,\)"),
    "robots of q": (lambda: paper_arm().initial_state(3, torch.zeros(2, 9)), "is given for 2 robots, asked for are 3"),
    "batch": (lambda: paper_arm().initial_state(2.5), "batch: expected a whole number from 1 up, got 2.5"),
    "dtype of control": (
        lambda: ArmIntegrator(DT).step(a := paper_arm(), a.initial_state(), Control(force=torch.zeros(1, 9))),
        "Control.force: expected torch.float64, as the model is, got torch.float32",
    ),
    "single precision": (
        lambda: ArmIntegrator(DT).step(a := paper_arm([incline(45.0)]).float(), a.initial_state()),
        "contact of an arm needs an arm in torch.float64, got torch.float32",
    ),
    "control": (lambda: ArmIntegrator(DT).step(a := paper_arm(), a.initial_state(), pushed(2)), "Control.force"),
    "explicit with four": (
        lambda: ArmIntegrator(DT, scheme="explicit").step(a := paper_arm(chambers=4), a.initial_state()),
        "the mass matrix of sections with 4 chambers is singular",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_by_name(call, message):
    """Refuse what makes no sense, naming it."""
    with pytest.raises(InputError, match=message):
        call()
