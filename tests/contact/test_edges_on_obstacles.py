"""Obstacles that touch edges and triangles between nodes: where points lie, what they bear, what they keep out."""

import copy
import math
import warnings

import numpy as np
import pytest
import torch

from torchdismech import (
    Circle,
    ImplicitEuler,
    InputError,
    Material,
    Model,
    RobotBuilder,
    Status,
    forces,
    meshes,
    rollout,
    straight,
)
from torchdismech.contact import (
    Barrier,
    Box,
    Capsule,
    Complementarity,
    Cylinder,
    Friction,
    HalfSpace,
    Obstacle,
    Penalty,
    Sphere,
)
from torchdismech.model.step_memory import evaluation_bytes

RADIUS = 2e-3
STIFF = Material(1e9, 1000.0, 0.3)
SQUARE = np.array([[0.0, 0, 0], [0.1, 0, 0], [0.1, 0.1, 0], [0, 0.1, 0]])
HALVES = np.array([[0, 1, 2], [0, 2, 3]])


def touching(shape, response=None, node_count=2, spacing=None, **options) -> Model:
    """Return a straight rod of .2 m along x through the origin that touches a shape."""
    builder = RobotBuilder()
    builder.add_rod(straight((-0.1, 0, 0), (0.1, 0, 0), node_count), Circle(RADIUS), STIFF)
    builder.add_contact(Obstacle(shape, response or Penalty(1e3, 1e-3), spacing=spacing, **options))
    return builder.finalize()


def sheet(shape, spacing, response=None) -> Model:
    """Return a square of two triangles in the plane z = 0 that touches a shape."""
    builder = RobotBuilder()
    builder.add_shell(SQUARE, HALVES, 2 * RADIUS, STIFF)
    builder.add_contact(Obstacle(shape, response or Penalty(1e3, 1e-3), spacing=spacing))
    return builder.finalize()


def points(model: Model) -> np.ndarray:
    """Return the points (P, 3) of a robot at rest that touch its obstacle."""
    return model.obstacles[0].points.of(model.nodes[None])[0].numpy()


# ---- where points lie ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("spacing", "between"), [(0.3, 0), (0.2, 0), (0.19, 1), (0.1, 1), (0.05, 3), (0.004, 49)])
def test_points_divide_an_edge(spacing, between):
    """Divide an edge of .2 m into equal parts that are no longer than asked for."""
    model = touching(Sphere((0, 0, 1.0), 0.5), spacing=spacing)
    found = np.sort(points(model)[:, 0])
    np.testing.assert_allclose(found, np.linspace(-0.1, 0.1, between + 2), atol=1e-15)
    assert model.obstacles[0].points.radius.tolist() == [RADIUS] * (between + 2)


def test_points_of_a_shell_are_a_grid():
    """Have each side of a shell once, and a triangle's points on lines parallel to its sides."""
    model = sheet(Sphere((0, 0, 1.0), 0.5), 0.1 * math.sqrt(2) / 4)
    grid = np.linspace(0, 0.1, 5)
    expected = np.stack(np.meshgrid(grid, grid, [0.0], indexing="ij"), axis=-1).reshape(-1, 3)
    found = points(model)
    assert len(found) == len(expected) == 25
    apart = np.linalg.norm(found[:, None] - expected, axis=2)
    assert apart.min(axis=0).max() < 1e-15 and apart.min(axis=1).max() < 1e-15


def test_an_edge_of_a_rod_and_a_shell_has_its_points_once():
    """Where a rod runs along a side of a shell, have one set of points, with the larger radius."""
    builder = RobotBuilder()
    builder.add_shell(SQUARE, HALVES, 2 * RADIUS, STIFF)
    builder.add_rod(SQUARE[:2], Circle(2 * RADIUS), STIFF)
    builder.add_contact(Obstacle(Sphere((0, 0, 1.0), 0.5), Penalty(1e3, 1e-3), spacing=0.05))
    model = builder.finalize()
    found, radius = points(model), model.obstacles[0].points.radius.numpy()
    assert len(np.unique(found.round(9), axis=0)) == len(found)
    on_rod = (found[:, 1] == 0) & (found[:, 0] > 0) & (found[:, 0] < 0.1)
    assert on_rod.any() and (radius[on_rod] == 2 * RADIUS).all() and (radius[found[:, 1] == 0.05] == RADIUS).all()


def test_edges_of_nodes_that_do_not_touch():
    """Have points on edges of which both nodes touch, and count the others as far away."""
    model = touching(Sphere((0, 0, 1.0), 0.5), node_count=5, spacing=0.025, nodes=[0, 1, 3, 4])
    found = np.sort(points(model)[:, 0])
    np.testing.assert_allclose(found, [-0.1, -0.075, -0.05, 0.0, 0.05, 0.075, 0.1], atol=1e-15)
    gap = model.obstacles[0].gap(model.initial_state().q, torch.zeros(1, dtype=torch.float64))
    assert gap[0].gt(1e3).tolist() == [False, False, True, False, False, False, False]


def test_radii_of_robots():
    """Give the points of each robot the radius of its own rod."""
    radius = torch.tensor([[1e-3], [3e-3]], dtype=torch.float64)
    builder = RobotBuilder()
    builder.add_rod(straight((-0.1, 0, 0), (0.1, 0, 0), 2), Circle(radius), STIFF)
    builder.add_contact(Obstacle(Sphere((0, 0, 0.1), 0.05), Penalty(1e3, 1e-3), spacing=0.1))
    model = builder.finalize()
    gap = model.obstacles[0].gap(model.initial_state().q, torch.zeros(2, dtype=torch.float64))
    # nodes at (.1, 0, .1) from the centre, the middle at .1
    expected = torch.tensor([[math.sqrt(0.02), math.sqrt(0.02), 0.1]], dtype=torch.float64) - 0.05 - radius
    torch.testing.assert_close(gap, expected, rtol=1e-14, atol=0)


# ---- what they bear ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("middle", [0.0, 0.005])
def test_dip_between_two_points(middle):
    """Let a ball dip between two points by spacing^2 / (8 (R + r)), and not at all at one."""
    spacing, size = 0.01, 0.03
    model = touching(Sphere((middle, 0, 0.0), size), spacing=spacing)
    q = model.initial_state().q.clone()
    q[:, 2:6:3] = size + RADIUS  # the centre line touches the ball of both radii
    gap = float(model.obstacles[0].gap(q, torch.zeros(1, dtype=torch.float64)).min())
    # the next order is a share of (spacing / 2)^2 / (4 (R + r)^2) = .6 % of the dip
    dip = 0.0 if middle == 0 else spacing**2 / (8 * (size + RADIUS))
    assert gap == pytest.approx(dip, rel=0.01, abs=1e-15)


RESPONSES = {
    "penalty": lambda: Penalty(1e3, 1e-3),
    "barrier": lambda: Barrier(10.0, 1e-3),
    "constraints": Complementarity,
}


@pytest.mark.filterwarnings("ignore:obstacle .* wide")
@pytest.mark.parametrize("response", RESPONSES)
def test_an_edge_lies_on_two_posts(response):
    """Carry half the weight of one edge on each of two posts between its nodes; without points it falls past them."""
    heights = {}
    for spacing in (None, 0.02):
        builder = RobotBuilder()
        builder.add_rod(straight((-0.1, 0, 0.018), (0.1, 0, 0.018), 2), Circle(RADIUS), STIFF)
        builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
        builder.add_force(forces.MassDamping(40.0))
        for name, x in (("left", -0.06), ("right", 0.06)):
            post = Capsule((x, -0.1, 0.0), (x, 0.1, 0.0), 0.015)
            builder.add_contact(Obstacle(post, RESPONSES[response](), name=name, spacing=spacing))
        model = builder.finalize()
        run = rollout(model, model.initial_state(), ImplicitEuler(5e-3, max_substeps=4), 100)
        assert bool((run.status == Status.CONVERGED).all())
        heights[spacing] = float(run.positions[-1, 0, :, 2].mean())
    weight = 9.81 * float(model.body.node_mass().sum())
    forces_up = [float(run.contact[f"force/{name}"][-1, 0, 2]) for name in ("left", "right")]
    # at rest to 1e-3: the motion decays with the damping's rate of 20 1/s
    np.testing.assert_allclose(forces_up, weight / 2, rtol=1e-3)
    assert heights[0.02] == pytest.approx(0.015 + RADIUS, abs=1e-3) and heights[None] < 0


@pytest.mark.parametrize("response", RESPONSES)
def test_a_triangle_lies_on_points(response):
    """Keep a sheet of two triangles up on three balls in the middle of its triangles, and carry its weight."""
    builder = RobotBuilder()
    builder.add_shell(SQUARE, HALVES, 2 * RADIUS, STIFF)
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    builder.add_force(forces.MassDamping(40.0))
    for name, (x, y) in {"a": (0.07, 0.03), "b": (0.03, 0.07), "c": (0.02, 0.03)}.items():
        ball = Sphere((x, y, -0.02), 0.0175)
        builder.add_contact(Obstacle(ball, RESPONSES[response](), name=name, spacing=0.01))
    model = builder.finalize()
    run = rollout(model, model.initial_state(), ImplicitEuler(5e-3, max_substeps=4), 50)
    assert bool((run.status == Status.CONVERGED).all())
    up = sum(run.contact[f"force/{name}"][-1, 0, 2] for name in "abc")
    # at rest to 1e-3, as above
    assert float(up) == pytest.approx(9.81 * float(model.body.node_mass().sum()), rel=1e-3)
    assert run.positions[-1, 0, :, 2].min() > -0.01


def test_a_rope_over_a_cylinder_of_few_edges():
    """Hold a rope whose top is the middle of an edge at the cylinder's height, by points; nodes let it dip in."""
    tops = {}
    for spacing in (None, 0.002):
        builder = RobotBuilder()
        rope = builder.add_rod(straight((-0.2, 0, 0.032), (0.2, 0, 0.032), 10), Circle(RADIUS), Material(1e6, 1000.0))
        builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
        builder.add_force(forces.MassDamping(40.0))
        drum = Cylinder((0, -0.1, 0), (0, 0.1, 0), 0.03)
        builder.add_contact(Obstacle(drum, Penalty(100.0, 1e-3), Friction(0.5, 1e-3), name="drum", spacing=spacing))
        model = builder.finalize()
        run = rollout(model, model.initial_state(), ImplicitEuler(1e-2, max_substeps=8), 200)
        assert bool((run.status == Status.CONVERGED).all())
        tops[spacing] = float(run.positions[-1, 0, rope[4:6], 2].mean())
        # the rope's ends still sink, slower and slower
        weight = 9.81 * float(model.body.node_mass().sum())
        assert float(run.contact["force/drum"][-1, 0, 2]) == pytest.approx(weight, rel=5e-3)
    # the edge at the top is 44 mm long: a chord between nodes on a circle of 32 mm lies 8.8 mm deeper
    assert tops[0.002] == pytest.approx(0.032, abs=3e-4) and tops[None] < 0.032 - 5e-3


@pytest.mark.parametrize("speed", [5.0, 20.0, 100.0, 1e4])
@pytest.mark.parametrize("response", ["penalty", "barrier"])
def test_edges_shot_at_a_post(response, speed):
    """Stop an edge at a thin post between its nodes, or say that it passed through."""
    height = -0.02
    post = Capsule((0.013, -0.1, height), (0.013, 0.1, height), RADIUS)
    model = touching(post, RESPONSES[response](), spacing=0.5 * RADIUS)
    state = model.initial_state()
    velocity = torch.zeros_like(state.velocity)
    velocity[:, 2:6:3] = -speed
    state = state.replace(velocity=velocity)
    for _ in range(6):
        state, info = ImplicitEuler(1e-3).step(model, state)
        (x0, _, z0), (x1, _, z1) = state.positions[0].tolist()
        assert z0 + (z1 - z0) * (0.013 - x0) / (x1 - x0) > height
        if int(info.status[0]) != Status.CONVERGED:
            break
    assert int(info.status[0]) in (Status.CONVERGED, Status.PASSED_THROUGH)
    assert speed < 1e3 or int(info.status[0]) == Status.PASSED_THROUGH


# ---- what is refused and said --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "spacing", "said"),
    [
        (HalfSpace((0, 0, 0), (0, 0, 1)), 0.01, "above a plane is above it, too"),
        (Sphere((0, 0, 1.0), 0.5), 0.0, "expected one length above 0 m for all robots, got 0.0"),
        (Sphere((0, 0, 1.0), 0.5), -1.0, "expected one length above 0 m"),
        (Sphere((0, 0, 1.0), 0.5), math.inf, "expected one length above 0 m"),
        (Sphere((0, 0, 1.0), 0.5), math.nan, "expected one length above 0 m"),
        (Sphere((0, 0, 1.0), 0.5), "fine", "expected one length above 0 m for all robots, got 'fine'"),
        (Sphere((0, 0, 1.0), 0.5), torch.tensor([[0.1], [0.2]]), "expected one length above 0 m for all robots"),
        (Sphere((0, 0, 1.0), 0.5), 1e-8, "makes 19999979 points of edges or triangles up to 0.2 m long"),
    ],
)
def test_refused(shape, spacing, said):
    """Refuse spacings that mean nothing, or too much."""
    with pytest.raises(InputError, match=said):
        touching(shape, spacing=spacing)


def test_thin_things_are_warned_of():
    """Say that something passes between two points where it is narrower than they are apart, and only then."""
    post = Capsule((0, -0.1, 0.5), (0, 0.1, 0.5), 5e-3)
    # as wide as 2 (5 + 2) mm, by eighths; a dip of a tenth of the contact radius would allow 2.9 mm
    with pytest.warns(UserWarning, match=r"is 0\.014 m wide.*up to 0\.2 m apart.*such as 0\.0018,.*adds up") as said:
        touching(post)
    assert said[0].filename == __file__
    with pytest.warns(UserWarning, match=r"up to 0\.1 m apart"):
        touching(post, spacing=0.1)
    for quiet in (
        lambda: touching(post, spacing=1e-3),
        lambda: touching(post, node_count=20),
        lambda: touching(Box((0, 0, 1.0), (0.3, 0.3, 0.3))),
        lambda: touching(Box((0, 0, -0.01), (1.0, 1.0, 0.02))),  # a table: thin, and wide
        lambda: touching(Cylinder((0, 0, 0.5), (0, 0, 0.501), 0.2)),  # a disk
        lambda: touching(HalfSpace((0, 0, -0.1), (0, 0, 1))),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            quiet()


def test_thin_parts_elsewhere_do_not_make_things_thinner():
    """Compare what may pass between two points with their own radius: a thread makes no holes in a thick rod."""
    builder = RobotBuilder()
    builder.add_rod(straight((-0.1, 0, 0), (0.1, 0, 0), 11), Circle(10e-3), STIFF)  # 20 mm apart
    builder.add_rod(straight((0.2, 0, 0), (0.21, 0, 0), 11), Circle(0.2e-3), STIFF)  # 1 mm apart
    builder.add_contact(Obstacle(Capsule((0, -0.1, 0.5), (0, 0.1, 0.5), 5e-3), Penalty(1e3, 1e-3)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        builder.finalize()


@pytest.mark.parametrize("beside", [0.02, 0.019, 0.018])
@pytest.mark.parametrize("law", [Penalty(200.0, 1e-4), Barrier(200.0, 1e-4), Complementarity()])
def test_a_sheet_that_jumps_over_a_post(beside, law):
    """Tell it wherever the nodes pass beside the axis, if the post is as wide as they are apart."""
    sheet = meshes.rectangle(0.04, 0.04, 0.005)
    builder = RobotBuilder()
    builder.add_shell(sheet.nodes, sheet.triangles, thickness=1e-3, material=STIFF)
    post = Capsule((-0.1, beside, -0.02), (0.1, beside, -0.02), 3e-3)
    builder.add_contact(Obstacle(post, copy.deepcopy(law)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = builder.finalize()
    velocity = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    velocity[:, 2 : 3 * len(sheet.nodes) : 3] = -5.0
    _, info = ImplicitEuler(1e-2).step(model, model.initial_state(velocity=velocity))
    assert info.status.tolist() == [Status.PASSED_THROUGH]


def test_spacing_that_is_advised_follows_how_far_things_dip_in():
    """Advise of a ball a spacing by its radius, of a box, which has edges, by the contact radius alone."""
    ball, box = Sphere((0, 0, 1.0), 0.05), Box((0, 0, 1.0), (0.06, 0.06, 0.06))
    for shape, radius in ((ball, 0.05), (box, 0.0)):
        spacing = math.sqrt(
            6 * 0.1 * 2e-3 * (radius + 2e-3)
        )  # dips by 3/4 of a tenth on an edge, a tenth in a triangle
        with pytest.warns(UserWarning, match=rf"such as {spacing:.2g}, by which"):
            touching(shape)


# ---- robots of a batch, other numbers ------------------------------------------------------------------------------


def test_radii_given_once_and_per_robot():
    """Take sizes of rods for all robots in one tensor beside sizes of shells of each, and the other way round."""
    one, each = torch.tensor([[2e-3]], dtype=torch.float64), torch.tensor([[2e-3], [3e-3]], dtype=torch.float64)
    for rod, thickness in ((one, each), (each, one)):
        builder = RobotBuilder()
        builder.add_rod(straight((-0.1, -0.1, 0), (0.1, -0.1, 0), 3), Circle(rod), STIFF)
        builder.add_shell(SQUARE, HALVES, thickness, STIFF)
        builder.add_contact(Obstacle(Sphere((0, 0, 1.0), 0.5), Penalty(1e3, 1e-3), spacing=0.05))
        radius = builder.finalize().obstacles[0].points.radius
        assert radius.shape[0] == 2 and radius.unique().tolist() == sorted(
            {*rod.flatten().tolist(), *(thickness / 2).flatten().tolist()}
        )


def test_a_robot_in_single_precision():
    """Step in float32 as in float64, to what its rounding leaves."""
    found = []
    for dtype in (torch.float32, torch.float64):
        builder = RobotBuilder()
        builder.add_rod(straight((-0.1, 0, 0.018), (0.1, 0, 0.018), 2), Circle(RADIUS), Material(1e6, 1000.0))
        builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
        for name, x in (("left", -0.06), ("right", 0.06)):
            post = Capsule((x, -0.1, 0.0), (x, 0.1, 0.0), 0.015)
            builder.add_contact(Obstacle(post, Penalty(1e2, 1e-3), name=name, spacing=0.02))
        model = builder.finalize(dtype=dtype)
        run = rollout(model, model.initial_state(), ImplicitEuler(2e-3), 20)
        assert run.positions.dtype == dtype and bool((run.status == Status.CONVERGED).all())
        found.append(run.positions[-1].double())
    # positions of .1 m are rounded to 1e-8 m in each step, and steps are solved to 1e-5 of their forces in float32
    torch.testing.assert_close(*found, rtol=0, atol=2e-5)


def test_guesses_are_made_feasible():
    """Carry nodes, and those of edges that this moves, until nothing overlaps: a barrier has no force there."""
    builder = RobotBuilder()
    builder.add_rod(straight((-0.1, 0, 0.02), (0.1, 0, 0.02), 4), Circle(RADIUS), Material(1e6, 1000.0))
    post = Capsule((0.01, -0.2, 0.0), (0.01, 0.2, 0.0), 0.012)
    builder.add_contact(Obstacle(post, Barrier(1.0, 1e-3), spacing=2e-3))
    model = builder.finalize()
    obstacle, start = model.obstacles[0], model.initial_state(batch=400)
    generator = torch.Generator().manual_seed(0)
    guess = start.q.clone()
    guess[:, :12] += 0.03 * torch.randn(400, 12, generator=generator, dtype=guess.dtype)
    before = (obstacle.gap(guess, start.time) <= 0).any(1)
    found = obstacle.without_overlap(guess, start, start.time)
    assert int(before.sum()) > 50 and bool((obstacle.gap(found, start.time) > 0).all())
    assert torch.equal(found[~before], guess[~before])


def test_guesses_that_are_feasible_cost_one_look(monkeypatch):
    """Count how often gaps are evaluated where nothing overlaps: once, and not for each round of carrying."""
    model = touching(Sphere((0, 0, -1), 0.5), Barrier(1.0, 1e-3), spacing=0.05)
    obstacle, start, looks = model.obstacles[0], model.initial_state(), []
    distance = Sphere.distance
    monkeypatch.setattr(Sphere, "distance", lambda self, points: looks.append(1) or distance(self, points))
    assert torch.equal(obstacle.without_overlap(start.q, start, start.time), start.q)
    assert len(looks) == 1


def test_points_count_in_the_estimate_of_memory():
    """Ask for more memory where many points touch."""
    few, many = (touching(Sphere((0, 0, 1.0), 0.5), spacing=spacing) for spacing in (0.1, 1e-4))
    points = many.obstacles[0].points.count
    # 9 derivatives a point, each of which stands for some numbers of 8 bytes
    assert evaluation_bytes(many) - evaluation_bytes(few) > 9 * 8 * 0.9 * points
