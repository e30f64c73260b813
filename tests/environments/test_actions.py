"""Actions that set one quantity: they add up where that makes sense, else one of them is refused."""

import pytest
import torch

from tests.environments.arms import NODES, arm, environment
from torchdismech import Circle, InputError, Material, RobotBuilder, Static, forces, meshes, straight
from torchdismech.environments import Action, Actuator, Constant, Held, node_positions
from torchdismech.magnetics import Constant as Uniform
from torchdismech.magnetics import Magnetic, MovingDipole, Table
from torchdismech.robot.state import Control
from torchdismech.values import row_of

EDGES = NODES - 1
BEND = Actuator("natural_curvature", torch.block_diag(*[torch.full((EDGES - 1, 1), 0.1)] * 2))
LONGER = Actuator("rest_length", torch.full((EDGES, 1), 2e-3))


def reached(actions, numbers, constants=None):
    """Return where an arm's nodes are after an action, on request with other constants of the model."""
    drawn = {} if constants is None else constants
    env = environment(
        1, model=arm(), actions=actions, observations=[node_positions()], start=None, constants=lambda m, draws: drawn
    )
    env.reset()
    return env.step(torch.tensor([numbers], dtype=torch.float64)).observation


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    ("name", "low", "value", "actuator", "amount"),
    [
        ("bend_twist.natural_kappa1", -1.0, 0.1, BEND, [0.5, 0.3]),
        ("stretch.rest_length", 0.03, 0.042, LONGER, [0.8]),
    ],
)
def test_actuators_add_to_a_constant_of_the_same_strain(first, name, low, value, actuator, amount):
    """Set natural strains by a constant and a pattern in either order: the same as a pattern on strains drawn so."""
    (count,) = row_of(arm().places[name])
    constant, numbers = Constant(name, low, 1.0, count=count), torch.linspace(0.9, 1.1, count).double() * value
    drawn = reached([actuator], amount, {name: numbers[None]})
    if first:
        both = reached([constant, actuator], [*numbers.tolist(), *amount])
    else:
        both = reached([actuator, constant], [*amount, *numbers.tolist()])
    assert (both - drawn).abs().max() < 1e-9  # m: Newton's method begins at other accelerations
    for other in (reached([actuator], amount), reached([constant], numbers.tolist())):
        assert (both - other).abs().max() > 1e-4  # m: both have their share


def test_a_constant_may_be_a_matrix_and_sizes_count_where_loads_feel_them():
    """Set a magnetisation of all edges by its three numbers; take the radius of edges where drag depends on it."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), NODES), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(Magnetic((0.0, 0.0, 1e4), Uniform((0.0, 0.0, 0.01))))
    builder.add_force(forces.QuadraticResistive(1.0, 1.0, 1000.0))
    model = builder.finalize(compile=False)
    magnet, radius = Constant("Magnetic.magnetisation", -1e4, 1e4, count=3), Constant("edge_radius", 0.0, 1.0, EDGES)
    radius.check(model)
    magnet.check(model)
    state, given = model.initial_state(2), torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    control = magnet.added(Control(), given, state, model)
    model.check_batch(state, control)
    assert torch.equal(control.values["Magnetic.magnetisation"][:, 0], given.double())


def test_sizes_count_where_a_load_feels_them_that_an_action_switches_on():
    """Draw the sections of magnetised edges in a field that is zero in the model and set by an action."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), NODES), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(Magnetic((1e4, 0.0, 0.0), Uniform((0.0, 0.0, 0.0))))
    model = builder.finalize(compile=False)
    field = Constant("Magnetic.field.value", -0.01, 0.01, count=3)
    drawn = {"edge_area": torch.tensor([[1e-5], [1e-4]], dtype=torch.float64).expand(2, EDGES)}
    env = environment(2, model=model, actions=[field], start=None, constants=lambda m, draws: drawn)
    env.reset()
    env.step(torch.full((2, 3), 0.01))
    thin, thick = env.current.state.positions[:, -1, 2]
    assert thick > 5 * thin > 0


@pytest.mark.parametrize("count", [3, 9])
@pytest.mark.parametrize(
    ("field", "name"),
    [
        (Table([0.0, 0.1, 0.2], torch.zeros(3, 3)), "Magnetic.field.rows"),
        (MovingDipole([0.0, 0.1, 0.2], torch.ones(3, 3), torch.ones(3, 3)), "Magnetic.field.centers"),
    ],
)
def test_tables_over_time_are_no_constants_of_actions(field, name, count):
    """Refuse them when the environment is made, by what steps say of them, whatever the count."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), NODES), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(Magnetic((0.0, 0.0, 1e4), field))
    with pytest.raises(InputError, match=rf"Constant\({name}\): a table over time cannot be set in a step"):
        environment(model=builder.finalize(compile=False), actions=[Constant(name, -0.1, 0.1, count=count)])


def test_natural_rest_lengths_are_those_at_which_rods_are_not_stretched():
    """Begin a load on rest lengths at those that the model has, not at those that it was built with."""
    model = arm()
    stencil = model.term("stretch").stencil
    stencil.rest_length = 1.1 * stencil.rest_length
    own = model.natural_strains(2).rest_length
    assert torch.equal(own, stencil.rest_length.expand(2, -1))
    solver = Static(load_steps=2)
    plain, _ = solver.step(model, model.initial_state(batch=2))
    given, _ = solver.step(model, model.initial_state(batch=2), Control(rest_length=own))
    assert torch.equal(plain.q, given.q)


@pytest.mark.parametrize(
    ("actions", "words"),
    [
        ([Held([0, 2], -0.1, 0.1), Held([2], -0.1, 0.1)], "Task.actions: dof 2 is moved by two Held: leave it out"),
        (
            [Actuator("rest_length", torch.full((EDGES, 1), 0.025))] * 2,
            r"also along with the other actions, but edge \d of 0.04 m may get -0.01 m; give a narrower range",
        ),
        (
            [Constant("stretch.rest_length", 0.001, 0.05, count=EDGES), LONGER],
            r"edge \d of 0.04 m may get -0.001 m",
        ),
    ],
)
def test_actions_that_do_not_go_together_are_refused(actions, words):
    """Refuse a dof that is held twice, and actions that together leave an edge no length, before anything moves."""
    with pytest.raises(InputError, match=words):
        environment(actions=actions)


def test_angles_do_not_take_the_place_of_changed_curvatures():
    """Refuse to act on angles of hinges where natural curvatures of triangles are no longer those as built."""
    mesh = meshes.rectangle(0.1, 0.1, 0.05)
    builder = RobotBuilder()
    builder.add_shell(mesh.nodes, mesh.triangles, 1e-3, Material(1e6, 1000.0))
    model = builder.finalize(compile=False)
    fold = Actuator("natural_hinge_angle", torch.ones(len(model.hinges), 1))
    fold.check(model)
    model.term("midedge").natural_curvature11 += 0.5
    with pytest.raises(InputError, match="midedge.natural_curvature11 was changed, and angles would take its place"):
        fold.check(model)


class Wave(Action):
    """How far a force on a tip goes to and fro."""

    low, high, count = -1.0, 1.0, 1

    def added(self, control, numbers, state, model):
        """Return the control with a force up, which depends on the time."""
        force = torch.zeros_like(state.q)
        force[:, 3 * NODES - 1] = 1e-3 * numbers[:, 0] * torch.cos(10 * state.time)
        return control.replace(force=force)


def test_an_action_of_ones_own_needs_bounds_a_count_and_a_control_alone():
    """Move an arm by a class that has nothing else, within its bounds, with other numbers at each step."""
    there, beyond, back = (reached([Wave()], [number]) for number in (1.0, 7.0, -1.0))
    assert torch.equal(there, beyond) and not torch.equal(there, back)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 1.5}, r"Task.actions\[0\]: count: expected a whole number from 1 up, got 1.5"),
        ({"low": 1.0}, r"Task.actions\[0\]: expected low < high, got 1.0 and 1.0"),
        ({"high": "far"}, r"Task.actions\[0\]: high: expected a number, got 'far'"),
        ({"added": lambda self, control, *_: None}, r"Odd.added: expected the control .* changed, got NoneType"),
    ],
)
def test_an_action_of_ones_own_is_refused_in_words(changes, message):
    """Give an action another count, bounds that are none, and no control."""
    with pytest.raises(InputError, match=message):
        reached([type("Odd", (Wave,), changes)()], [0.5])


def test_an_action_without_bounds_is_refused():
    """Leave out what an action has to say of its numbers."""
    bare = type("Bare", (Action,), {"added": Wave.added, "low": 0.0, "high": 1.0})
    with pytest.raises(InputError, match="Bare has no count: low and high are the bounds"):
        reached([bare()], [0.5])
