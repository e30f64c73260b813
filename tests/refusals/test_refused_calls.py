"""What calls and constructors are given by mistake, refused by name."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import torchdismech
from tests.environments.arms import actions, environment
from tests.rigid.chains import cable
from tests.rods import rod_through
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    InputError,
    Material,
    RobotBuilder,
    Static,
    arc,
    follow,
    modes,
    read_mesh,
    rollout,
    straight,
    unroll,
)
from torchdismech.actuation import OnEdges, Tendons
from torchdismech.contact import Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.elastic import LinearElastic
from torchdismech.elastic.membrane import MooneyRivlin
from torchdismech.elastic.shell import Plate
from torchdismech.environments import Actuator, Environment
from torchdismech.errors import shown
from torchdismech.forces import Gravity, LocalForce, MassDamping
from torchdismech.integrate.integrator import Integrator
from torchdismech.io.scene import load_scene
from torchdismech.rigid import Radau
from torchdismech.runs import frames
from torchdismech.testing import check_symmetry
from torchdismech.trajectory import Recorder
from torchdismech.view.curves import draw_curves
from torchdismech.view.scenery import Scenery

DEMO = Path(torchdismech.__file__).parent / "demo" / "scene.toml"


@pytest.fixture(scope="module")
def model():
    """Return a rod of four edges, clamped at its start."""
    points = straight((0, 0, 0), (0.3, 0, 0), 5)
    return rod_through(points, Circle(2e-3), Material(1e6, 1000.0)).finalize(compile=False)


def run(model, call=rollout, **options):
    """Return the run of a model from rest."""
    return call(model, model.initial_state(), ImplicitEuler(0.01), **{"steps": 2, **options})


COUNTS = {
    "rollout.steps": (1, lambda model, count: run(model, steps=count)),
    "rollout.every": (1, lambda model, count: run(model, every=count)),
    "frames.steps": (1, lambda model, count: run(model, frames, steps=count)),
    "frames.every": (1, lambda model, count: run(model, frames, every=count)),
    "unroll.steps": (1, lambda model, count: run(model, unroll, steps=count)),
    "unroll.checkpoint_every": (1, lambda model, count: run(model, unroll, checkpoint_every=count)),
    "load_steps": (1, lambda model, count: Static(load_steps=count)),
    "max_iterations": (1, lambda model, count: ImplicitEuler(0.01, max_iterations=count)),
    "max_substeps": (0, lambda model, count: ImplicitEuler(0.01, max_substeps=count)),
    "LocalForce.reach": (0, lambda model, count: LocalForce(reach=count)),
    "straight: nodes": (2, lambda model, count: straight((0, 0, 0), (1, 0, 0), count)),
    "arc: nodes": (2, lambda model, count: arc((0, 0, 0), (1, 0, 0), (0, 0, 1), 1.0, count)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_whole_numbers(model, name):
    """Refuse fractions, of which Python kept the whole part, or stored other frames; take those of NumPy."""
    least, call = COUNTS[name]
    for count in (least + 0.5, float(least + 1), least - 1, "2", math.nan, True):
        with pytest.raises(InputError, match=f"^{name}: expected a whole number from {least} up, got {count!r}$"):
            call(model, count)
    call(model, np.int64(least))


SWITCHES = {
    "rollout.throw": lambda model, given: run(model, throw=given),
    "rollout.strains": lambda model, given: run(model, strains=given),
    "frames.throw": lambda model, given: run(model, frames, throw=given),
    "unroll.throw": lambda model, given: run(model, unroll, throw=given),
    "unroll.progress": lambda model, given: run(model, unroll, progress=given),
    "step: throw": lambda model, given: ImplicitEuler(0.01).step(model, model.initial_state(), throw=given),
    "line_search": lambda model, given: ImplicitEuler(0.01, line_search=given),
    "planar": lambda model, given: RobotBuilder(planar=given),
    "clamp.twist": lambda model, given: clamped(twist=given),
    "MassDamping.explicit": lambda model, given: MassDamping(1.0, explicit=given),
    "obstacle 'obstacle': rolling": lambda model, given: obstacle(rolling=given),
    "SelfContact.themselves": lambda model, given: SelfContact(Penalty(1.0, 1e-3), themselves=given),
    "check_symmetry: translation": lambda model, given: symmetric(model, translation=given),
    "check_symmetry: relabelling": lambda model, given: symmetric(model, relabelling=given),
    "check_symmetry: reversal": lambda model, given: symmetric(model, reversal=given),
    "load_scene: insist": lambda model, given: load_scene(DEMO, insist=given),
    "Scene.build: allow_code": lambda model, given: load_scene(DEMO).build(allow_code=given),
    "Scenery: apart": lambda model, given: Scenery(run(model), apart=given),
    "Scenery: contact": lambda model, given: Scenery(run(model), contact=given),
    "draw_curves: energies": lambda model, given: draw_curves(run(model, strains=True), energies=given, strains=True),
    "draw_curves: contact": lambda model, given: draw_curves(run(model), contact=given),
    "draw_curves: strains": lambda model, given: draw_curves(run(model), strains=given),
    "Environment.step: idle": lambda model, given: acted(idle=given),
}


def clamped(**options):
    """Clamp a node of a rod."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 3), Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], **options)


def obstacle(**options):
    """Return a rough floor."""
    return Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(1e3, 1e-3), Friction(0.5, 1e-3), **options)


def symmetric(model, **options):
    """Return what the symmetries of gravity come to."""
    weight = Gravity((0.0, 0.0, -9.81))
    weight.bind(model.body)
    return check_symmetry(weight, model, model.initial_state(), **options)


def acted(**options):
    """Act once on robots whose episodes have begun."""
    robots = environment()
    robots.reset()
    return robots.step(actions(robots.batch), **options)


@pytest.mark.parametrize("name", SWITCHES)
def test_switches_are_true_or_false(model, name):
    """Refuse text, of which Python takes "no" for True, and numbers; take NumPy's truths."""
    for given in ("no", 1, None):
        with pytest.raises(InputError, match=f"^{re.escape(name)}: expected True or False, got {given!r}$"):
            SWITCHES[name](model, given)
    SWITCHES[name](model, np.bool_(False))


NUMBERS = {
    "Material.youngs": lambda given: Material(given, 1000.0).constants(),
    "Material.density": lambda given: Material(1e6, given).constants(),
    "Material.poisson": lambda given: Material(1e6, 1000.0, poisson=given).constants(),
    "Material.relaxation_time": lambda given: Material(1e6, 1000.0, relaxation_time=given).constants(),
    "Circle.radius": lambda given: Circle(given).constants(),
    "LinearElastic.EA": lambda given: LinearElastic({"EA": given}),
    "Plate.stiffness": lambda given: Plate(given, 0.3),
    "Plate.poisson": lambda given: Plate(1.0, given),
    "MooneyRivlin.c1": lambda given: MooneyRivlin(given, 1.0),
    "MassDamping.rate": MassDamping,
    "Penalty.stiffness": lambda given: Penalty(given, 1e-3),
    "OnEdges: offset": lambda given: tendon_beside(given),
    "youngs": lambda given: cable(3, youngs=given),
    "Actuator: matrix": lambda given: Actuator("natural_curvature", given),
}


def tendon_beside(offset):
    """Return a rod with a tendon beside it."""
    builder = rod_through(straight((0, 0, 0), (0.3, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0))
    builder.add_force(Tendons([OnEdges([0, 3], offset)], tension=1.0))
    return builder.finalize(compile=False)


@pytest.mark.parametrize("name", NUMBERS)
def test_truths_and_texts_are_no_numbers(name):
    """Refuse what torch would make numbers of, such as True for 1 Pa, alone and in lists, and what it cannot."""
    for given in (True, [True, 1.0], np.array([False]), torch.tensor(True), 1j, np.array([1j]), "1.0", None):
        with pytest.raises(InputError, match=f"^{re.escape(name)}: expected numbers, got {re.escape(shown(given))}$"):
            NUMBERS[name](given)


ONE_NUMBER = {
    "join_distance": lambda model: RobotBuilder(join_distance=True),
    "follow.last": lambda model: follow(model, model.initial_state(), last=True),
    "follow.length": lambda model: follow(model, model.initial_state(), length=True),
    "rod.obj: scale": lambda model: read_mesh("rod.obj", scale=True),
}


@pytest.mark.parametrize("name", ONE_NUMBER)
def test_truths_are_no_number(model, name):
    """Refuse True for one length or factor."""
    with pytest.raises(InputError, match=f"^{name}: expected a .*, got True$"):
        ONE_NUMBER[name](model)


def test_states_begin_with_numbers(model):
    """Refuse truths and texts where a state begins."""
    robots = rod_through(straight((0, 0, 0), (0.3, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0)).finalize(
        compile=False
    )
    for given in ([True] * robots.n_dofs, "rest"):
        with pytest.raises(InputError, match="^initial_state: q: expected numbers, got"):
            robots.initial_state(q=given)
    with pytest.raises(InputError, match="^thrown: velocity: expected numbers, got 'fast'$"):
        robots.thrown(robots.initial_state(), velocity="fast")


def test_environments_of_scenes_draw_anew_or_not():
    """Refuse text for whether robots draw anew, before the scene is read."""
    with pytest.raises(InputError, match="^Environment.from_scene: anew: expected True or False, got 'no'$"):
        Environment.from_scene(DEMO, None, anew="no")


def test_edges_without_length(model):
    """Refuse nodes in one place that an edge joins, of all robots or of one; energies there were NaN."""
    heap = torch.zeros(2, 5, 3, dtype=torch.float64)
    one = model.nodes.expand(2, -1, -1).clone()
    one[1, 3] = one[1, 2]
    for positions, where in ((heap, "nodes 0 and 1 of robot 0"), (one, "nodes 2 and 3 of robot 1")):
        expected = f"{where} are in one place, and an edge joins them"
        with pytest.raises(InputError, match=f"^posture: positions: {expected}"):
            model.posture(positions)
        q = torch.cat([positions.flatten(1), torch.zeros(2, model.n_dofs - 15)], dim=1)
        with pytest.raises(InputError, match=f"^initial_state: q: {expected}"):
            model.initial_state(q=q)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_postures_that_are_not_finite(model, number):
    """They were taken."""
    positions = model.nodes[None].clone()
    positions[0, 2, 1] = number
    with pytest.raises(InputError, match="posture: positions hold numbers that are not finite"):
        model.posture(positions)


@pytest.mark.parametrize("call", [rollout, unroll])
def test_states_and_models_that_changed_places(model, call):
    """Say how they are given."""
    state = model.initial_state()
    expected = rf"^{call.__name__}: state: expected a state, as in \(model, state, integrator, steps\), got "
    with pytest.raises(InputError, match=expected + "Model$"):
        call(state, model, ImplicitEuler(0.01), 2)
    with pytest.raises(InputError, match=expected + "ImplicitEuler$"):
        call(model, ImplicitEuler(0.01), state, 2)


@pytest.mark.parametrize("call", ["step", "steps", "static", "follow", "modes", "energies", "chain"])
def test_tensors_that_are_given_for_controls(model, call):
    """Say what is to be written; torch would ask for the truth of a tensor."""
    state, force, chain = model.initial_state(), torch.zeros(1, model.n_dofs, dtype=torch.float64), cable(3)
    calls = {
        "step": lambda: ImplicitEuler(0.01).step(model, state, force),
        "steps": lambda: ImplicitEuler(0.01).steps(model, state, 3, force),
        "static": lambda: Static().step(model, state, force),
        "follow": lambda: follow(model, state, force),
        "modes": lambda: modes(model, state, 2, control=force),
        "energies": lambda: model.energies(state, force),
        "chain": lambda: Radau(0.01).step(chain, chain.initial_state(), torch.zeros(1, 4)),
    }
    said = (
        "expected a Control, or one for each of 3 steps" if call == "steps" else "got Tensor: write Control.force=...."
    )
    with pytest.raises(InputError, match=said):
        calls[call]()


@pytest.mark.parametrize("field", ["natural_curvature", "natural_twist", "rest_length", "clamped_q", "pose", "force"])
def test_controls_of_lists_and_arrays(field):
    """Refuse where a control is made what ended in an error of its shape in the step."""
    for value in ([0.0] * 6, np.zeros((1, 6)), 0.1):
        expected = f"Control.{field}: expected a tensor with a row for each robot, got {type(value).__name__}$"
        with pytest.raises(InputError, match=expected):
            Control(**{field: value})


@pytest.mark.parametrize(
    ("running", "got"),
    [
        (torch.tensor([1]), r"\(1,\) of torch.int64"),
        (torch.ones(3, dtype=torch.bool), r"\(3,\) of torch.bool"),
        (torch.tensor(True), r"\(\) of torch.bool"),
        ([True], "list"),
    ],
)
def test_robots_to_step_are_a_mask(model, running, got):
    """Refuse numbers of robots, and masks of others, before a run begins."""
    expected = rf"running: expected a tensor \(1,\) of bool, robots to step, got {got}$"
    with pytest.raises(InputError, match=expected):
        run(model, running=running, writer=Unused())
    with pytest.raises(InputError, match=expected):
        ImplicitEuler(0.01).step(model, model.initial_state(), running=running)


class Unused(Recorder):
    """A writer that nobody starts."""

    def start(self, *arguments):
        """Say that it was started."""
        raise AssertionError("the run began")


def test_what_is_no_state_is_refused(model):
    """Name the argument, as where it changed places with another."""
    with pytest.raises(InputError, match="modes: state: expected a state, such as model.initial_state"):
        modes(model, "rest", 2)
    with pytest.raises(InputError, match="follow: state: expected a state"):
        follow(model, "rest")
    with pytest.raises(InputError, match="state: expected a state"):
        ImplicitEuler(1e-2).step(model, "rest")


def test_masses_of_robots_are_not_taken_for_those_of_nodes():
    """Refuse masses (B,), which were one for each node where there are as many nodes as robots."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 6), Circle(4e-3), Material(1e6, 1100.0))
    masses = torch.linspace(0.1, 0.6, 6, dtype=torch.float64)
    with pytest.raises(InputError, match=r"mass: expected one number, or one of each robot with shape \(B, 1\), got"):
        builder.add_mass([3], masses)
    builder.add_mass([3], masses[:, None])
    added = builder.finalize().body.node_mass()[:, 3]
    assert torch.allclose(added.diff(), masses.diff(), rtol=1e-12, atol=0)  # rounding


class Nameless(Integrator):
    """An integrator of one's own that does not say by which scheme."""


@pytest.mark.parametrize("call", [rollout, unroll, lambda model, state, own, steps: own.step(model, state)])
def test_integrators_without_a_scheme(model, call):
    """Say what a subclass lacks, whatever asks for it first; other names are missing as with any object."""
    own = Nameless(0.01)
    with pytest.raises(InputError, match=r"^Nameless: expected `scheme = Scheme\(\.\.\.\)`, as ImplicitEuler has it"):
        call(model, model.initial_state(), own, steps=2)
    with pytest.raises(AttributeError, match="'Nameless' object has no attribute 'other'"):
        own.other  # noqa: B018
