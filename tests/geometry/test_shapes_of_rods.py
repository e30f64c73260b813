"""Points on arcs and helices: how far they turn, and what is refused."""

import math

import numpy as np
import pytest

from torchdismech import Circle, InputError, Material, RobotBuilder, arc, helix, straight

CENTER, START, AXIS = (0.0, 0.0, 0.0), (0.1, 0.0, 0.0), (0.0, 0.0, 1.0)


@pytest.mark.parametrize("angle", [math.pi / 2, -math.pi / 2, 2 * math.pi, -2 * math.pi, sum([math.pi / 5] * 10)])
def test_arcs_turn_by_their_angle(angle):
    """End where the angle says, up to a whole turn either way, also where that is a sum of ten parts."""
    points = arc(CENTER, START, AXIS, angle, 41)
    # a circle of 0.1 m in doubles
    assert np.allclose(points[-1], [0.1 * math.cos(angle), 0.1 * math.sin(angle), 0], atol=1e-15)
    assert np.allclose(np.linalg.norm(points, axis=1), 0.1, rtol=1e-14)


@pytest.mark.parametrize("angle", [90.0, -90.0, 6.4])
def test_arcs_of_more_than_a_turn_are_refused(angle):
    """Refuse 90 degrees in place of pi / 2, which lay on one circle fourteen times."""
    with pytest.raises(InputError, match=r"arc: angle: expected a turn or less, .* \[rad\], got"):
        arc(CENTER, START, AXIS, angle, 1001)


@pytest.mark.parametrize(("start", "axis"), [(CENTER, AXIS), ((0, 0, 0.3), AXIS), ((0.1, 0.2, 0.3), (0.3, 0.6, 0.9))])
def test_arcs_of_no_radius_are_refused(start, axis):
    """Refuse a start that turns on the spot, unless it rises there."""
    with pytest.raises(InputError, match="arc: start: expected a point beside the axis"):
        arc(CENTER, start, axis, 1.0, 11)
    assert len(helix(CENTER, start, axis, 1.0, 0.1, 11)) == 11


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_angles_and_heights_are_finite(wrong):
    """Refuse others by name, and by the function that was called; they made points that are NaN."""
    for made, name in (
        (lambda: arc(CENTER, START, AXIS, wrong, 5), "arc: angle"),
        (lambda: helix(CENTER, START, AXIS, wrong, 0.1, 5), "helix: angle"),
        (lambda: helix(CENTER, START, AXIS, 1.0, wrong, 5), "helix: height"),
    ):
        with pytest.raises(InputError, match=f"^{name}: expected a finite number, got {wrong}$"):
            made()


def test_helices_of_few_points_are_refused():
    """Take half a turn from point to point, and refuse more, which is another helix."""
    assert len(helix(CENTER, START, AXIS, 10 * math.pi, 0.1, 11)) == 11
    for nodes, angle in ((6, 10 * math.pi), (11, -10.1 * math.pi), (101, 360.0)):
        with pytest.raises(InputError, match="helix: angle: .* from point to point, more than half a turn"):
            helix(CENTER, START, AXIS, angle, 0.1, nodes)


@pytest.mark.parametrize(
    ("wrong", "said"), [("far", "numbers"), ((0, 0), "x, y, z"), ((0, math.nan, 0), "finite"), (None, "numbers")]
)
def test_points_and_axes_are_three_numbers(wrong, said):
    """Refuse other points and axes by name; they ended in errors of NumPy, or made points that are not finite."""
    for made, name in (
        (lambda: straight(wrong, START, 5), "straight: start"),
        (lambda: straight(START, wrong, 5), "straight: end"),
        (lambda: helix(wrong, START, AXIS, 1.0, 0.1, 5), "helix: center"),
        (lambda: helix(CENTER, wrong, AXIS, 1.0, 0.1, 5), "helix: start"),
        (lambda: arc(CENTER, START, wrong, 1.0, 5), "arc: axis"),
    ):
        with pytest.raises(InputError, match=f"{name}: expected .*{said}"):
            made()


@pytest.mark.parametrize(
    "wrong",
    ["far", None, 3, [[0, 0, 0], [1, 0]], [[0, 0, 0], ["a", 0, 0]], [[0, 0, 0], [1, 0, 1j]], np.eye(3, dtype=bool)],
)
def test_nodes_are_numbers(wrong):
    """Refuse nodes of rods and shells that are no real numbers; imaginary parts were left out, without a word."""
    builder, material = RobotBuilder(), Material(1e6, 1000.0, 0.3)
    with pytest.raises(InputError, match="rod: expected"):
        builder.add_rod(wrong, Circle(1e-3), material)
    with pytest.raises(InputError, match="shell: expected"):
        builder.add_shell(wrong, [[0, 1, 2]], 1e-3, material)
