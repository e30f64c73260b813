"""[batch.randomize]: numbers that are drawn for each robot."""

import pytest
import torch

from tests.io.rod_scenes import CLAMP, GOOD, ROBOT, ROD, SIMULATION, run
from torchdismech.io.scene.randomize import with_draws
from torchdismech.io.scene.refusals import SceneError


def drawn(load, size: int, draws: str, seed: int = 0):
    """Return what is drawn for a batch."""
    return load(GOOD + f"[batch]\nsize = {size}\nseed = {seed}\n[batch.randomize]\n{draws}").randomized


def test_a_robot_draws_the_same_in_any_batch(load):
    """Draw for batches of 3 and 50, with and without another number, under both names: robot i gets the same."""
    few = drawn(load, 3, '"rod.youngs" = {uniform = [1e6, 3e6]}')["rod.youngs"]
    other = '"environment.gravity.2" = {normal = [-9.81, 0.1]}\n'
    many = drawn(load, 50, other + '"rod.0.youngs" = {uniform = [1e6, 3e6]}')["rod.0.youngs"]
    assert torch.equal(few, many[:3]) and len(many.unique()) == 50
    assert not torch.equal(few, drawn(load, 3, '"rod.youngs" = {uniform = [1e6, 3e6]}', seed=1)["rod.youngs"])
    normal = [drawn(load, size, other)["environment.gravity.2"][:3] for size in (3, 50)]
    assert torch.equal(*normal)


def test_distributions_are_those_asked_for(load):
    """Check ranges and moments of 4000 draws, and that values are taken as they are."""
    size = 4000
    uniform = drawn(load, size, '"rod.youngs" = {uniform = [1e6, 3e6]}')["rod.youngs"]
    assert 1e6 <= uniform.min() < 1.01e6 and 2.99e6 < uniform.max() <= 3e6
    # the mean of 4000 is within 5 standard errors: 5 * 2e6 / sqrt(12 * 4000)
    assert abs(uniform.mean() - 2e6) < 5e4
    log = drawn(load, size, '"rod.youngs" = {loguniform = [1e4, 1e8]}')["rod.youngs"].log10()
    assert log.min() >= 4 and log.max() <= 8 and abs(log.mean() - 6) < 0.1
    normal = drawn(load, size, '"environment.gravity.2" = {normal = [-9.81, 0.5]}')["environment.gravity.2"]
    assert abs(normal.mean() + 9.81) < 0.04 and abs(normal.std() - 0.5) < 0.03
    values = drawn(load, 2, '"rod.density" = {values = [900.0, 1100.0]}')["rod.density"]
    assert values.tolist() == [900, 1100]


@pytest.mark.parametrize(
    ("name", "interval", "problem"),
    [
        ("rod.youngs", "uniform = [-1e6, 2e6]", "numbers near -1e+06 may be drawn: expected greater than 0"),
        ("rod.poisson", "uniform = [0.3, 0.9]", "numbers near 0.9 may be drawn: expected less than"),
        ("rod.poisson", "loguniform = [0.1, 0.9]", "numbers near 0.9 may be drawn: expected less than"),
    ],
)
def test_intervals_are_refused_whatever_is_drawn_of_them(load, name, interval, problem):
    """Refuse a part of an interval that no robot draws: with a larger batch, or another seed, one would."""
    for seed in range(4):
        with pytest.raises(SceneError) as caught:
            drawn(load, 1, f'"{name}" = {{{interval}}}', seed)
        assert f'batch.randomize."{name}".{interval.split()[0]}: {problem}' in str(caught.value)


def test_tables_that_are_not_there_are_answered_by_those_that_are(load):
    """Name the tables that are written, not those that a scene may have."""
    with pytest.raises(SceneError) as caught:
        drawn(load, 2, '"initial.velocity.2" = {uniform = [0, 1]}')
    message = str(caught.value)
    assert "there is no 'initial' in the scene to be drawn; there are robot, rod, clamp, " in message
    assert "shell" not in message and "tendon" not in message


def test_bounds_may_be_what_is_not_allowed_itself(load):
    """Take an interval from 0 where numbers are to be above it: none is 0. One number as both ends is an interval."""
    assert (drawn(load, 50, '"rod.youngs" = {uniform = [0.0, 2e6]}')["rod.youngs"] > 0).all()
    assert drawn(load, 2, '"rod.youngs" = {uniform = [2e6, 2e6]}')["rod.youngs"].tolist() == [2e6, 2e6]


DRAWS = {
    "rod.youngs": (1e6, 2e6),
    "rod.poisson": (0.2, 0.4),
    "rod.density": (900.0, 1100.0),
    "rod.section.radius": (4e-3, 5e-3),
    "rod.stiffness.EA": (60.0, 90.0),
    "mass.0.add": (0.01, 0.02),
    "inertia.0.across": (1e-5, 1e-4),
    "inertia.0.along": (1e-6, 1e-5),
    "environment.gravity.0": (1.0, 2.0),
    "environment.fluid_density": (100.0, 200.0),
    "environment.viscosity": (0.1, 0.2),
    "environment.mass_damping": (0.1, 0.2),
    "environment.resistive.tangential": (0.01, 0.02),
    "environment.resistive.normal": (0.1, 0.2),
    "point_force.0.force.1": (0.01, 0.02),
    "move.0.velocity.0": (0.1, 0.2),
    "move.1.rotation.rate": (1.0, 2.0),
    "move.0.twist_rate": (1.0, 2.0),
}
ALL_NUMBERS = (
    ROBOT
    + ROD
    + 'stiffness = {EA = 70.0}\nnatural = "straight"\npoisson = 0.3\n'
    + CLAMP
    + SIMULATION
    + "[environment]\ngravity = [0, 0, -9.81]\nfluid_density = 100.0\nviscosity = 0.1\nmass_damping = 0.1\n"
    + "resistive = {tangential = 0.01, normal = 0.1}\n[[mass]]\nnodes = [4]\nadd = 0.01\n"
    + "[[inertia]]\nedges = [3]\nacross = 1e-5\nalong = 1e-6\n"
    + "[[point_force]]\nnodes = [4]\nforce = [0, 0.01, 0]\n"
    + "[[move]]\nnodes = [0, 1]\nvelocity = [0.1, 0, 0]\nedges = [0]\ntwist_rate = 1.0\nstop = 0.02\n"
    + "[[move]]\nnodes = [0, 1]\nstart = 0.02\nrotation = {axis = [0, 1, 0], center = [0, 0, 0], rate = 1.0}\n"
)


@pytest.mark.parametrize("name", DRAWS)
def test_each_number_reaches_its_robot(load, name):
    """Give two robots different numbers: each moves as it does alone with its number, not as the other."""
    both = run(load(ALL_NUMBERS + f'[batch]\nsize = 2\n[batch.randomize]\n"{name}" = {{values = {list(DRAWS[name])}}}'))
    for robot, value in enumerate(DRAWS[name]):
        alone = run(load(ALL_NUMBERS + f'[batch]\nsize = 1\n[batch.randomize]\n"{name}" = {{values = [{value}]}}'))
        # 1e-10 of the motion's size (0.1 m): a row of a batch differs from itself alone by rounding only
        torch.testing.assert_close(both.positions[:, robot], alone.positions[:, 0], rtol=0, atol=1e-11)
        torch.testing.assert_close(both.twist[:, robot], alone.twist[:, 0], rtol=0, atol=1e-9)
    difference = (both.positions[-1, 0] - both.positions[-1, 1]).abs().max()
    twisting = (both.twist[-1, 0] - both.twist[-1, 1]).abs().max()
    assert max(difference, twisting) > 1e-7


def test_numbers_broadcast(load):
    """Return drawn numbers as (B, 1) and (B, 3), others as they are."""
    document = load(ALL_NUMBERS).document
    draws = {("rod", 0, "youngs"): torch.tensor([1.0, 2.0]), ("environment", "gravity", 2): torch.tensor([-1.0, -2.0])}
    values = with_draws(document, draws)
    assert values.rod[0].youngs.tolist() == [[1], [2]]
    assert values.rod[0].density == document.rod[0].density
    x, y, _ = document.environment.gravity
    assert values.environment.gravity.tolist() == [[x, y, -1], [x, y, -2]]
    assert values.point_force[0].force == document.point_force[0].force


def test_loads_of_as_many_robots_as_places(load):
    """Draw a load of each of two robots that acts on two nodes, on two edges: it is not one of each place."""
    loads = (
        "[[point_force]]\nnodes = [2, 4]\nforce = [0, 0.01, 0]\n[[line_load]]\nedges = [1, 2]\nload = [0, 0, 0.1]\n"
        "[[moment]]\nnodes = [2, 4]\nmoment = [0, 1e-3, 0]\n[batch]\nsize = 2\n[batch.randomize]\n"
        '"point_force.0.force.1" = {values = [1, 2]}\n"line_load.0.load.2" = {values = [3, 4]}\n'
        '"moment.0.moment.1" = {values = [5, 6]}\n'
    )
    point, line, moment = load(GOOD + loads).build().model.forces[-3:]
    assert point.force[:, 1].tolist() == [1, 2] and line.load[:, 2].tolist() == [3, 4]
    assert moment.moment[:, 1].tolist() == [5, 6]


def test_components_of_vectors_at_their_defaults_are_drawn(load):
    """Draw one angle of a box whose rotation the scene leaves out: the others are zero."""
    box = '[[obstacle]]\nshape = "box"\ncenter = [0, 0, -9]\nsize = [1, 1, 1]\nstiffness = 1.0\nspacing = 0.01\n'
    drawn = '[batch]\nsize = 2\n[batch.randomize]\n"obstacle.rotation.1" = {uniform = [0.1, 0.2]}\n'
    scene = load(GOOD + box + drawn)
    angles = scene.randomized["obstacle.rotation.1"]
    rotation = scene.build().model.obstacles[0].shape.rotation
    assert torch.equal(rotation, torch.stack([0 * angles, angles, 0 * angles], dim=1))
