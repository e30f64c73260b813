"""What clamps that let nodes slide hold together, how their lines move, and what is refused."""

import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    straight,
)


def test_what_clamps_hold_adds_up():
    """Slide along the line in which two planes meet, be held by three; lines along axes are those of axes."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 6), Circle(0.01), Material(1e6, 1000.0))
    builder.clamp(nodes=[2, 3, 4, 5], normal=(1, 1, 0))
    builder.clamp(nodes=[3, 4], normal=(1, 1, 1))
    builder.clamp(nodes=[4], axes="x")
    builder.clamp(nodes=[5], axes="z")
    builder.clamp(nodes=[0], along=(0, 0, -2))
    builder.clamp(nodes=[1], normal=(0, 3, 0))
    model = builder.finalize(compile=False)
    free = model.free[:18].view(6, 3)
    assert free[0].tolist() == [False, False, True] and free[1].tolist() == [True, False, True]
    assert not bool(free[4].any()) and free[5].tolist() == [True, True, False]
    slides = model.unknowns.slides
    assert slides.nodes.tolist() == [2, 3, 5]
    allowed = torch.tensor([[1, -1, 0], [-1, 1, 0], [0, 0, 0]], dtype=torch.float64) / 2
    found = torch.as_tensor(slides.projections()[0])
    torch.testing.assert_close(found[1], allowed, rtol=0, atol=1e-15)
    torch.testing.assert_close(found[2], allowed, rtol=0, atol=1e-15)
    torch.testing.assert_close(found[0], allowed + torch.diag(torch.tensor([0.0, 0, 1])).to(allowed))


def test_what_is_nearly_an_axis_is_none():
    """Keep directions that are off an axis by more than rounding, and take others for the axis."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 6), Circle(0.01), Material(1e6, 1000.0))
    for node, off in enumerate((1e-8, 1e-11, 1e-13)):
        builder.clamp(nodes=[2 * node], along=(1e200, 1e200 * off, 0))
        builder.clamp(nodes=[2 * node + 1], normal=(1e-200, 0, 1e-200 * off))
    model = builder.finalize(compile=False)
    assert model.unknowns.slides.nodes.tolist() == [0, 1, 2, 3]
    for node, off in enumerate((1e-8, 1e-11)):
        along, across = model.unknowns.slides.projections()[0, 2 * node : 2 * node + 2]
        assert along[0, 1].item() == pytest.approx(off, rel=1e-4)  # rounding of 1e-16
        assert across[0, 2].item() == pytest.approx(-off, rel=1e-4)
    free = model.free[:18].view(6, 3)
    assert free[4].tolist() == [True, False, False] and free[5].tolist() == [False, True, True]


def test_a_line_that_moves_takes_its_node_along():
    """Follow a line that `clamped_q` moves, and stay where it is along it if nothing pulls."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 6), Circle(0.01), Material(1e6, 1000.0))
    builder.clamp(nodes=[5], along=(1, 0, 1), direction="rest")
    model = builder.finalize(compile=False)
    state = model.initial_state()
    target = state.q.clone()
    target[0, 15:18] += torch.tensor([0.2, 0.1, 0.0], dtype=torch.float64)
    state, _ = Static().step(model, state, Control(clamped_q=target), throw=True)
    way = state.positions[0] - model.nodes
    # the rod moves as a whole: by x - z = 0.2 and y = 0.1; rounding of positions
    torch.testing.assert_close(way[:, 0] - way[:, 2], torch.full_like(way[:, 0], 0.2), rtol=0, atol=1e-12)
    torch.testing.assert_close(way[:, 1], torch.full_like(way[:, 0], 0.1), rtol=0, atol=1e-12)


REFUSED = {
    "nothing": ({"along": (0, 0, 0)}, r"clamp.along: expected a vector \(3,\) other than zero, got \(0, 0, 0\)"),
    "not finite": ({"normal": (0, float("nan"), 0)}, "clamp.normal: expected a vector"),
    "two numbers": ({"along": (1, 0)}, "clamp.along: expected a vector"),
    "a word": ({"along": "x"}, "clamp.along: expected a vector"),
    "line and plane": ({"along": (1, 0, 0), "normal": (0, 1, 0)}, "expected one of axes, along and normal, got along"),
    "line and axes": ({"along": (1, 0, 0), "axes": "z"}, "got axes and along; what several clamps of a node hold"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name):
    """Name the argument, what was expected and what came."""
    given, message = REFUSED[name]
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 3), Circle(0.01), Material(1e6, 1000.0))
    with pytest.raises(InputError, match=message):
        builder.clamp(nodes=[0], **given)


@pytest.mark.parametrize("given", [{"along": (1, 1, 0)}, {"normal": (0, 1, 0)}])
def test_planar_robots_cannot_slide_out_of_their_plane(given):
    """Refuse lines that leave the plane, and planes other than those across it."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 3), Circle(0.01), Material(1e6, 1000.0))
    with pytest.raises(InputError, match="a planar robot keeps to the x-z plane"):
        builder.clamp(nodes=[0], **given)


def test_lines_in_a_plane_up_to_rounding():
    """Take a line whose y is rounding alone, as that of direction, for one in the plane."""

    def slides(y):
        builder = RobotBuilder(planar=True)
        builder.add_rod(straight((0, 0, 0), (1, 0, 0), 4), Circle(0.01), Material(1e6, 1000.0))
        builder.clamp(nodes=[0], along=(0.6, y, 0.8))
        return builder.finalize(compile=False).unknowns.slides

    for y in (1e-17, -3e-8):
        torch.testing.assert_close(slides(y).allowed, slides(0.0).allowed, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", [ImplicitMidpoint, Newmark])
def test_velocity_across_a_line_that_moves(kind):
    """Report the speed at which a line moves as that of its node across it, and none two steps after it has stopped."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 6), Circle(0.01), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.clamp(nodes=[5], along=(1, 0, 1))
    model, integrator, seen = builder.finalize(compile=False), kind(1e-2), []
    state = model.initial_state()
    across = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64) / 2**0.5
    for step in range(1, 13):
        target = model.body.rest_q[None].clone()
        target[0, 15:18] += 1e-3 * min(step, 8) * across  # 0.1 m/s, for eight steps
        state, info = integrator.step(model, state, Control(clamped_q=target))
        assert bool(info.converged.all())
        seen.append(float(state.velocity[0, 15:18] @ across))
    # rounding of places of 1 m over dt
    assert seen[1:8] == pytest.approx([0.1] * 7, abs=1e-12) and seen[9:] == pytest.approx([0.0] * 3, abs=1e-12)
