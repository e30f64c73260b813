"""Bodies that are shot at each other bounce, or are said to have passed through: never in silence."""

import numpy as np
import pytest
import torch
import trimesh

from torchdismech import (
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Model,
    Newmark,
    RobotBuilder,
    Status,
    forces,
    rollout,
    straight,
)
from torchdismech.contact import (
    Barrier,
    Box,
    Capsule,
    Complementarity,
    Friction,
    HalfSpace,
    Mesh,
    Obstacle,
    Penalty,
    SelfContact,
    Sphere,
)
from torchdismech.contact.pairs.pair_calls import pair_values
from torchdismech.contact.passing import CLEARANCE, TOUCH, pairs_passed, passed_obstacle
from torchdismech.geometry.crossing import closest_crossing
from torchdismech.integrate import step

RADIUS, DT = 5e-3, 1e-2
INTEGRATORS = {"euler": ImplicitEuler, "midpoint": ImplicitMidpoint, "newmark": Newmark}
# strong enough to stop the fastest rod: 100 diameters a step are 100 m/s, its middle has a few grams
RESPONSES = {"penalty": lambda: Penalty(2e7, 1e-3), "barrier": lambda: Barrier(1e6, 1e-3)}
SPEEDS = torch.tensor([0.02, 0.1, 0.9, 1.1, 3.0, 30.0, 100.0], dtype=torch.float64)  # diameters a step


def crossed(response, centre_line: str = "straight", friction: Friction | None = None) -> Model:
    """Return a held rod along x and a free one along y above it."""
    builder, material = RobotBuilder(), Material(1e8, 1000.0)
    held = builder.add_rod(straight((-0.1, 0.007, 0), (0.1, 0.007, 0), 6), Circle(RADIUS), material)
    builder.add_rod(straight((0.013, -0.1, 3 * RADIUS), (0.013, 0.1, 3 * RADIUS), 6), Circle(RADIUS), material)
    builder.clamp(nodes=held.tolist())
    builder.add_contact(SelfContact(response, friction, centre_line=centre_line))
    return builder.finalize()


def falling(model: Model, direction=(0.0, 0.0, -1.0), nodes=slice(6, 12)):
    """Return a state for each speed, some nodes moving in a direction."""
    state = model.initial_state(batch=len(SPEEDS))
    velocity = torch.zeros(len(SPEEDS), len(model.nodes), 3, dtype=torch.float64)
    speed = 2 * RADIUS / DT * SPEEDS[:, None, None]
    velocity[:, nodes] = speed * torch.tensor(direction, dtype=torch.float64)
    twists = velocity.new_zeros(len(SPEEDS), model.body.n_angles)
    return state.replace(velocity=torch.cat([velocity.flatten(1), twists], dim=1))


def above(state) -> torch.Tensor:
    """Return by how much (B,) the second rod is above the first where they cross [m]."""
    x = state.positions
    return x[:, 8:10, 2].mean(1) - x[:, 2:4, 2].mean(1)


def shot(model: Model, state, integrator, steps: int = 8):
    """Return the last state, the first failure (B,) of each robot, and the least height that it got to."""
    status = torch.zeros(state.batch, dtype=torch.long)
    least = above(state)
    for _ in range(steps):
        state, info = integrator.step(model, state, running=status == 0)
        status = torch.where(status == 0, info.status, status)
        least = torch.minimum(least, above(state))
    return state, status, least


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("centre_line", ["straight", "smooth"])
def test_rods_shot_at_each_other(centre_line, integrator, response):
    """Never let a rod get through another in silence, at any speed."""
    model = crossed(RESPONSES[response](), centre_line)
    # few iterations: a step that fails is no silence
    _, status, least = shot(model, falling(model), INTEGRATORS[integrator](DT, max_iterations=12), steps=5)
    assert float(least.min()) > 0
    assert bool((status[-2:] == Status.PASSED_THROUGH).all())


@pytest.mark.parametrize("response", ["penalty", "barrier"])
@pytest.mark.slow
def test_substeps_take_rods_through_the_contact(response):
    """Bring rods into contact, at any speed, where steps may be parted."""
    model = crossed(RESPONSES[response]())
    state, status, least = shot(model, falling(model), ImplicitEuler(DT, max_substeps=512, max_iterations=15), steps=2)
    assert status.tolist() == [0] * len(SPEEDS)
    # the fastest one is hit off its middle, whirls aside and gets down beside the held rod
    assert float(least[SPEEDS < 50].min()) > 0
    velocity = state.node_velocities[:, 6:, 2].mean(1)
    # all that could get there in two steps were stopped or thrown back
    arrived = SPEEDS > 0.5
    start = -2 * RADIUS / DT * SPEEDS
    assert bool((velocity[arrived] > 0.5 * start[arrived]).all())


@pytest.mark.parametrize("friction", [None, Friction(0.4)])
def test_constraints_stop_rods_that_meet_fast(friction):
    """Stop rods that move by up to three diameters a step, where inertia leads to iterates beyond each other."""
    model = crossed(Complementarity(), friction=friction)
    slow = SPEEDS <= 3
    state, status, least = shot(model, falling(model).rows(slow.nonzero().squeeze(1)), ImplicitEuler(DT), steps=2)
    assert status.tolist() == [0] * len(state.q)
    arrived = SPEEDS[slow] > 0.5
    assert float(least.min()) > 1.5 * RADIUS
    assert float(least[arrived].max()) < 2.5 * RADIUS


def test_stopped_rods_leave_where_pairs_were_looked_for():
    """Look for pairs again where a rod is stopped: its ends fly on, farther off the other nodes than was expected."""
    model = crossed(Complementarity())
    state = falling(model).rows((SPEEDS == 3).nonzero()[:, 0].repeat(2))
    state = state.replace(velocity=state.velocity * torch.tensor([[0.0], [2.0]], dtype=torch.float64))
    _, status, least = shot(model, state, ImplicitEuler(DT), steps=1)
    assert status.tolist() == [0, 0]
    assert float(least.min()) > 0  # where the bent rod's chords cross, not its points of contact


def test_sliding_along_each_other():
    """Not flag rods that pass close by: side by side along their axes, or one over the other."""
    builder, material = RobotBuilder(), Material(1e8, 1000.0)
    gap = 2 * RADIUS + 1.1e-3
    builder.add_rod(straight((-0.1, 0, 0), (0.1, 0, 0), 6), Circle(RADIUS), material)
    builder.add_rod(straight((-0.1, 0, gap), (0.1, 0, gap), 6), Circle(RADIUS), material)
    builder.add_contact(SelfContact(Penalty(1e4, 1e-3)))
    model = builder.finalize()
    for direction in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.6, 0.8, 0.0), (0.0, 0.6, 0.8)):
        _, status, _ = shot(model, falling(model, direction), ImplicitEuler(DT), steps=3)
        assert status.tolist() == [0] * len(SPEEDS), direction


def test_all_kinds_of_pairs():
    """Find nodes and edges that cross a shell from how they move; moving together is not passing."""
    builder, material = RobotBuilder(), Material(1e6, 1000.0)
    builder.add_rod(straight((0.01, 0.02, 0.05), (0.03, 0.05, 0.09), 3), Circle(1e-4), material)
    grid = np.stack(np.meshgrid(np.linspace(-0.1, 0.1, 5), np.linspace(-0.1, 0.1, 5)), -1).reshape(-1, 2)
    triangles = [
        t for i in range(4) for j in range(4) for a in [5 * i + j] for t in ((a, a + 1, a + 6), (a, a + 6, a + 5))
    ]
    builder.add_shell(np.c_[grid, np.zeros(25)], np.array(triangles), 1e-3, material)
    builder.add_contact(SelfContact(Penalty(1e4, 1e-3)))
    model = builder.finalize()
    start = model.initial_state(batch=4).positions
    way = torch.zeros_like(start)
    way[0, :3, 2] = -0.3  # through the shell, from far above to far below
    way[1] = torch.tensor([0.3, 0.1, -0.3])  # all together
    way[2, :3] = torch.tensor([0.3, 0.2, -0.04])  # over it
    way[3, 0, 2] = -0.051  # just through
    angles = start.new_zeros(4, model.body.n_angles)
    q0, q1 = (torch.cat([x.flatten(1), angles], dim=1) for x in (start, start + way))
    pairs = model.contact.may_touch(q0, q1, torch.full((4,), 1e-3, dtype=torch.float64)).listed
    assert pairs_passed(pairs, q0, q1).tolist() == [True, False, False, True]


@pytest.mark.parametrize("centre_line", ["straight", "smooth"])
def test_head_on(centre_line):
    """Find rods that pass straight through each other, where rounding makes their way as long as their distances."""
    model = crossed(Penalty(1e4, 1e-3), centre_line)
    rng, count = np.random.default_rng(1), 200
    start = model.initial_state(batch=count).positions.clone()
    start[:, 6:, 2] += torch.as_tensor(rng.uniform(0, 0.1, (count, 1)))
    end = start + torch.as_tensor(rng.uniform(-0.01, 0.01, (count, 1, 3)))  # both together
    end[:, 6:, 2] -= start[:, 6:, 2] + torch.as_tensor(rng.uniform(1e-4, 0.1, (count, 1)))
    angles = start.new_zeros(count, model.body.n_angles)
    q0, q1 = (torch.cat([x.flatten(1), angles], dim=1) for x in (start, end))
    pairs = model.contact.may_touch(q0, q1, torch.full((count,), 1e-3, dtype=torch.float64)).listed
    assert len(pairs.tables[-1]) > 0 and (pairs.tables[-1].kernel is closest_crossing) == (centre_line == "smooth")
    assert bool(pairs_passed(pairs, q0, q1).all())
    for table in pairs.tables:  # what compiled code says of each pair, and what torch does
        if len(table):
            near = TOUCH * table.reaches
            found = pair_values(CLEARANCE[table.kernel], table.listed, q0, q1, [near])[0]
            (expected,) = CLEARANCE[table.kernel].function(table.gathered(q0), table.gathered(q1), near)
            # 1e-13 of lengths of .1 m
            assert torch.allclose(found, expected, rtol=0, atol=1e-14)


SHAPES = {
    "sphere": lambda: Sphere((0, 0, 0), 2 * RADIUS),
    "small sphere": lambda: Sphere((0, 0, 0), 0.2 * RADIUS),
    "capsule": lambda: Capsule((0, -0.1, 0), (0, 0.1, 0), RADIUS),
    "thin box": lambda: Box((0, 0, 0), (0.2, 0.2, 1e-3)),
}


def over(shape, response) -> Model:
    """Return a rod of five nodes above an obstacle, its middle node over the middle of it."""
    builder = RobotBuilder()
    height = 0.05
    builder.add_rod(straight((-0.1, 0, height), (0.1, 0, height), 5), Circle(RADIUS), Material(1e7, 1000.0))
    builder.add_contact(Obstacle(shape, response))
    return builder.finalize()


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("shape", SHAPES)
def test_nodes_shot_at_obstacles(shape, response):
    """Never let a node get through a small or thin obstacle in silence."""
    model = over(SHAPES[shape](), RESPONSES[response]())
    state = falling(model, nodes=slice(0, 5))
    status = torch.zeros(state.batch, dtype=torch.long)
    for _ in range(8):
        state, info = ImplicitEuler(DT).step(model, state, running=status == 0)
        status = torch.where(status == 0, info.status, status)
        assert bool((state.positions[:, 2, 2] > 0).all())
    assert bool((status[-2:] == Status.PASSED_THROUGH).all())
    assert int(status[0]) == Status.CONVERGED


def moved(model: Model, x0, x1):
    """Return states of one robot each, all nodes far away but the first, which goes from x0 to x1 (B, 3)."""
    states = []
    for x in (x0, x1):
        positions = model.nodes.repeat(len(x), 1, 1) + torch.tensor([50.0, 50.0, 50.0])
        positions[:, 0] = torch.as_tensor(x)
        q = torch.cat([positions.flatten(1), positions.new_zeros(len(x), model.body.n_angles)], dim=1)
        states.append(model.initial_state(batch=len(x)).replace(q=q))
    return states


@pytest.mark.parametrize("distance", [0.1, 1.0, 30.0])
def test_ways_through_a_sphere(distance):
    """Find ways through the middle of a small sphere, however long; not those beside it, or that end in front of it."""
    model = over(Sphere((0, 0, 0), 1e-3), Penalty(1e4, 1e-4))
    rng = np.random.default_rng(0)
    directions = rng.normal(size=(200, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    across = np.cross(directions, rng.normal(size=(200, 3)))
    across /= np.linalg.norm(across, axis=1, keepdims=True)
    far = rng.uniform(0.02, 1, size=(2, 200, 1)) * distance
    obstacle, reach = model.obstacles[0], RADIUS + 1e-3
    for offset, passes in ((0.0, True), (0.8 * reach, True), (1.01 * reach, False), (3 * reach, False)):
        start, end = far[0] * directions + offset * across, -far[1] * directions + offset * across
        assert passed_obstacle(obstacle, *moved(model, start, end)).tolist() == [passes] * 200
        assert not passed_obstacle(obstacle, *moved(model, start, 2 * start)).any()
    assert not passed_obstacle(obstacle, *moved(model, (0.02 + far[0]) * directions, 1.1 * reach * directions)).any()


def test_ways_along_obstacles():
    """Not flag long ways along a thin box or over a mesh, nor any into a half-space, which has no other side."""
    start = torch.tensor([[-0.2, 0, 0]], dtype=torch.float64).repeat(3, 1)
    start[:, 2] = 0.5e-3 + torch.tensor([1e-4, 1e-3, 0.05]) + RADIUS
    end = start * torch.tensor([-1.0, 1, 1])
    model = over(Box((0, 0, 0), (1.0, 1.0, 1e-3)), Penalty(1e4, 1e-4))
    assert passed_obstacle(model.obstacles[0], *moved(model, start, end)).tolist() == [False] * 3
    end[:, 2] *= -1
    assert passed_obstacle(model.obstacles[0], *moved(model, start, end)).tolist() == [True] * 3
    floor = over(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(1e4, 1e-4))
    assert not passed_obstacle(floor.obstacles[0], *moved(floor, start, end)).any()


def angle(thickness: float = 2e-3) -> Mesh:
    """Return an L of two thin plates, 10 cm wide: the box around it is as thick as they are wide."""
    t = thickness
    outline = [(0, 0), (0.1, 0), (0.1, t), (t, t), (t, 0.1), (0, 0.1)]
    vertices = [(x, y, z) for z in (-0.05, 0.05) for x, y in outline]
    top = [(6, 7, 8), (6, 8, 9), (6, 9, 10), (6, 10, 11)]
    sides = [(k, j, j + 6, k + 6) for k, j in zip(range(6), (1, 2, 3, 4, 5, 0), strict=True)]
    caps = top + [(a - 6, c - 6, b - 6) for a, b, c in top]
    return Mesh(vertices, caps + [f for a, b, c, d in sides for f in ((a, b, c), (a, c, d))])


def test_ways_through_walls():
    """Find ways through either plate of an L, along which nothing is as deep as the box around it; not those beside."""
    model = over(angle(), Penalty(1e4, 1e-4))
    obstacle, rng, count = model.obstacles[0], np.random.default_rng(1), 100
    places = rng.uniform((0.02, 0, -0.04), (0.09, 2e-3, 0.04), (count, 3))
    ways = rng.uniform(-1, 1, (count, 3)) * (0.1, 0, 0.1) + (0, 1, 0)
    before, behind = (rng.uniform(0.012, 0.1, (count, 1)) for _ in range(2))  # more than the radius of 5 mm, tilted
    start, end = places - before * ways, places + behind * ways
    for turned in (slice(None), [1, 0, 2]):  # the L is its own mirror image
        assert passed_obstacle(obstacle, *moved(model, start[:, turned], end[:, turned])).all()
        assert passed_obstacle(obstacle, *moved(model, end[:, turned], start[:, turned])).all()
        along = np.stack([start[:, turned], start[:, turned] + [0, 0, 0.3]])
        assert not passed_obstacle(obstacle, *moved(model, *along)).any()
        assert not passed_obstacle(obstacle, *moved(model, start[:, turned], 2 * start[:, turned] - places)).any()
    short = places + (RADIUS - 1e-4) * np.array([0.0, 1.0, 0.0])  # overlaps at its end, before the wall
    short[:, 1] += 2e-3 - places[:, 1]
    assert not passed_obstacle(obstacle, *moved(model, end, short)).any()


def test_what_cuts_off_an_edge_does_not_pass():
    """Let ways cut off the edge of a thick body, as points do that slide over it; not those through its middle."""
    box = trimesh.creation.box((0.1, 0.1, 0.1))
    model = over(Mesh(box.vertices, box.faces), Penalty(1e4, 1e-4))
    heights = torch.tensor([0.02, 0.0, -0.03], dtype=torch.float64)
    start = torch.stack([0 * heights, 0 * heights - 0.07, heights], 1)
    end = start[:, [0, 2, 1]] * torch.tensor([1.0, -1.0, -1.0])  # mirrored in the diagonal of the two faces
    # they are 5, 15 and 30 mm deep on the diagonal; a quarter of the thickness is 25 mm
    assert passed_obstacle(model.obstacles[0], *moved(model, start, end)).tolist() == [False, False, True]


def test_other_nodes_pass_through_walls():
    """Let those nodes through that do not touch the mesh."""
    builder = RobotBuilder()
    builder.add_rod(straight((-0.1, 0, 0.05), (0.1, 0, 0.05), 5), Circle(RADIUS), Material(1e7, 1000.0))
    builder.add_contact(Obstacle(angle(), Penalty(1e4, 1e-4), nodes=[1, 2, 3, 4]))
    model = builder.finalize()
    ends = (torch.tensor([[0.05, y, 0.0]], dtype=torch.float64) for y in (0.02, -0.02))
    assert not passed_obstacle(model.obstacles[0], *moved(model, *ends)).any()


def test_iterations_of_both_searches_count(monkeypatch):
    """Count the iterations of the search from the start, too, of a node that passes through a wall all the same."""
    iterations, found = [], step._root

    def root(*args, **options):
        q, info = found(*args, **options)
        iterations.append(info.iterations)
        return q, info

    monkeypatch.setattr(step, "_root", root)
    status, counted = shot_at_a_wall("penalty")[1:]
    assert len(iterations) == 2 and status.tolist() == [Status.CONVERGED] + [Status.PASSED_THROUGH] * 3
    assert torch.equal(counted, sum(iterations)) and int(iterations[1][0]) == 0 and int(iterations[1][1]) > 0


def shot_at_a_wall(response):
    """Return where four robots are after a step, shot at the wall of a mesh, with their status and iterations."""
    builder = RobotBuilder()
    builder.add_rod(straight((0.03, 0.012, 0), (0.09, 0.012, 0), 5), Circle(RADIUS), Material(1e7, 1000.0))
    builder.add_contact(Obstacle(angle(), RESPONSES[response]()))
    model = builder.finalize()
    velocity = model.initial_state(batch=4).velocity
    velocity[:, 1:15:3] = torch.tensor([[-0.1], [-6.0], [-20.0], [-80.0]], dtype=torch.float64)
    after, info = ImplicitEuler(5e-3).step(model, model.initial_state(batch=4, velocity=velocity))
    return after.positions, info.status, info.iterations


@pytest.mark.parametrize("response", RESPONSES)
def test_nodes_shot_at_a_thin_wall(response):
    """Never let a node get through the wall of a mesh in silence."""
    positions, status, _ = shot_at_a_wall(response)
    assert bool((positions[..., 1] > 2e-3).all())
    assert status.tolist() == [Status.CONVERGED] + [Status.PASSED_THROUGH] * 3


def test_a_robot_that_is_nowhere():
    """Leave a robot with NaN to Newton's method, and judge the others."""
    model = over(Sphere((0, 0, 0), 1e-2), Penalty(1e4, 1e-4))
    start, end = torch.tensor([[0, 0, 0.1]] * 3).double(), torch.tensor([[0, 0, -0.1]] * 3).double()
    end[1] = torch.nan
    assert passed_obstacle(model.obstacles[0], *moved(model, start, end)).tolist() == [True, False, True]


@pytest.mark.parametrize(("way", "passes"), [(1e9, False), (1e20, False), (1e200, True)])
def test_ways_without_end(way, passes):
    """Follow a node past a ball however far it goes; where its way cannot be measured it counts as having passed."""
    model = over(Sphere((0, 0, 0), 0.02), Penalty(1.0, 1e-3))
    start = torch.tensor([[0.1, 0.0, 1.0]], dtype=torch.float64)
    end = torch.tensor([[way, 0.0, 1.0]], dtype=torch.float64)
    assert passed_obstacle(model.obstacles[0], *moved(model, start, end)).tolist() == [passes]


@pytest.mark.parametrize("kind", ["rod", "shell"])
def test_a_part_that_is_clamped_is_an_obstacle_for_edges(kind):
    """Hold a rope on a post, or on the edge of a plate, that is between two of its nodes; an obstacle lets it pass."""
    heights = {}
    for held in (True, False):
        builder = RobotBuilder()
        along = np.arange(-5, 5) * 0.02 + 0.01  # m: nodes 1 cm to the left and right of the post
        rope = np.stack([along, 0 * along, 0 * along + 0.012], axis=1)
        builder.add_rod(rope, Circle(1e-3), Material(1e6, 1100.0), name="rope")
        law = Penalty(200.0, 5e-4)
        if not held:
            builder.add_contact(Obstacle(Capsule((0, -0.05, 0), (0, 0.05, 0), 2e-3), law))
        elif kind == "rod":
            post = builder.add_rod(
                straight((0, -0.05, 0), (0, 0.05, 0), 2), Circle(2e-3), Material(1e6, 1100.0), name="it"
            )
            builder.clamp(nodes=post.tolist())
        else:
            corners = np.array([[0, -0.05, 0], [0, 0.05, 0], [0, 0, -0.1]])
            plate = builder.add_shell(corners, [[0, 1, 2]], 4e-3, Material(1e6, 1100.0), name="it")
            builder.clamp(nodes=plate.tolist())
        if held:
            builder.add_contact(SelfContact(law, between=("rope", "it")))
        builder.add_force(forces.Gravity((0, 0, -9.81)))
        model = builder.finalize(compile=False)
        run = rollout(model, model.initial_state(), ImplicitEuler(2e-3, max_substeps=16), 50, throw=True)
        heights[held] = run.positions[-1, 0, 4:6, 2]
    # the sum of the radii is 3 mm; half the weight, 8.5e-3 N, overlaps by 2e-5 m
    torch.testing.assert_close(heights[True], torch.full((2,), 3e-3, dtype=torch.float64), rtol=0, atol=3e-4)
    assert heights[False].max() < -0.03


def test_parts_that_rub_and_meet_fast_are_searched_from_where_they_were():
    """Throw three rough rods at 4 m/s onto a floor and each other, 20 mm a step, where they touch within 8 mm.

    An iterate ahead has rods beyond each other, from where the search converged to a root that passes through. Of
    eighteen robots two are like that in their first step; the others that fail have no other root within reach.
    """
    builder = RobotBuilder()
    for k in range(3):
        x, y, z = 0.08 * np.cos(0.7 * k), 0.08 * np.sin(0.7 * k), 0.012 + 0.012 * k
        youngs = torch.logspace(5, 7, 6, dtype=torch.float64)[:, None]
        builder.add_rod(straight((-x, -y, z), (x, y, z), 9), Circle(4e-3), Material(youngs, 1000.0, 0.4))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(300.0, 8e-4), Friction(0.4, 1e-4)))
    builder.add_contact(SelfContact(Penalty(300.0, 8e-4), Friction(0.4, 1e-4), themselves=False))
    model = builder.finalize()
    for seed, robot in ((0, 1), (2, 5)):
        generator = torch.Generator().manual_seed(seed)
        thrown = torch.stack([4 * torch.randn(6, 3, generator=generator, dtype=torch.float64) for _ in range(3)])
        thrown[..., 2] -= 4
        nodes = thrown.repeat_interleave(9, dim=0).transpose(0, 1).flatten(1)
        velocity = torch.cat([nodes, nodes.new_zeros(6, model.n_dofs - nodes.shape[1])], dim=1)
        state = model.initial_state(6, velocity=velocity)
        _, info = ImplicitEuler(5e-3).step(model, state)
        assert info.status[robot] == Status.CONVERGED
