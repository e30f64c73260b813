"""Constants of contact that are NaN: steps fail, and say so, where comparisons would take surfaces for far apart."""

import pytest
import torch

from torchdismech import Circle, Control, ImplicitEuler, Material, RobotBuilder, Status, forces, rollout, straight
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
    SelfContact,
    Sphere,
)

RADIUS = 2e-3
LATE = 16  # steps after which numbers are NaN: those before are recorded by then
SHAPES = {
    "plane": lambda: HalfSpace((0, 0, 0), (0, 0, 1)),
    "ball": lambda: Sphere((0.05, 0, -1), 1.0),
    "capsule": lambda: Capsule((0, 0, -0.1), (0.1, 0, -0.1), 0.1),
    "cylinder": lambda: Cylinder((-0.1, 0, -0.1), (0.2, 0, -0.1), 0.1),
    "box": lambda: Box((0.05, 0, -0.1), (0.4, 0.4, 0.2)),
}
LAWS = {
    "penalty": lambda: (Penalty(50.0, 1e-4), Friction(0.3, 1e-3)),
    "barrier": lambda: (Barrier(50.0, 1e-4), Friction(0.3, 1e-3)),
    "constraint": lambda: (Complementarity(), Friction(0.3)),
}


def lying(*contacts):
    """Return two rods that lie on what is at z = 0."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 1.05 * RADIUS), (0.1, 0, 1.05 * RADIUS), 4), Circle(RADIUS), Material(1e6, 1100.0))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    for contact in contacts:
        builder.add_contact(contact)
    return builder.finalize()


def assert_fails(model, name):
    """Make a constant of the first of two robots NaN after some steps: it fails then, by name, alone."""
    module, attribute = model.places[name]
    value = getattr(module, attribute).detach()
    value = value.expand(1, 1) if value.dim() == 0 else value[None] if value.dim() == 1 else value
    right = Control(values={name: value.repeat(2, *[1] * (value.dim() - 1))})
    wrong = Control(values={name: right.values[name].clone()})
    wrong.values[name][0] = torch.nan

    def schedule(time, _):
        return right if float(time[0]) < (LATE + 0.5) * 1e-3 else wrong  # the end of a step

    with pytest.warns(RuntimeWarning, match=rf"Control.values\['{name}'\] of robot 0 .*holds NaN"):
        run = rollout(model, model.initial_state(batch=2), ImplicitEuler(1e-3), LATE + 4, schedule=schedule)
    assert run.status[: LATE + 1].eq(Status.CONVERGED).all()
    assert run.status[LATE + 1 :, 0].eq(Status.NOT_FINITE).all()
    assert run.status[:, 1].eq(Status.CONVERGED).all()


@pytest.mark.parametrize(
    ("shape", "law", "constant"),
    [
        (shape, "penalty", name)
        for shape, names in {
            "plane": ("point", "normal", "tolerance", "stiffness", "friction", "slip_velocity"),
            "ball": ("center", "radius"),
            "capsule": ("start", "end", "radius"),
            "cylinder": ("start", "end", "radius"),
            "box": ("center", "size", "rotation"),
        }.items()
        for name in names
    ]
    + [("plane", "barrier", name) for name in ("point", "tolerance", "friction")]
    + [("plane", "constraint", name) for name in ("point", "normal", "friction")]
    + [("ball", "constraint", "radius"), ("box", "constraint", "size")],
)
@pytest.mark.filterwarnings("ignore:rollout. robot 0. not_finite")
def test_obstacles(shape, law, constant):
    """Fail where the constant of an obstacle becomes NaN, once steps are recorded, too."""
    assert_fails(lying(Obstacle(SHAPES[shape](), *LAWS[law](), name="floor")), f"floor.{constant}")


@pytest.mark.parametrize("law", ["penalty", "barrier"])
@pytest.mark.parametrize("others", [(), ("penalty",)])
@pytest.mark.filterwarnings("ignore:rollout. robot 0. not_finite")
def test_an_obstacle_far_away(law, others):
    """Fail where a stiffness becomes NaN that no force reads yet, with and without parts that may touch each other."""
    floor = Obstacle(HalfSpace((0, 0, -1), (0, 0, 1)), *LAWS[law](), name="floor")
    assert_fails(lying(floor, *(SelfContact(*LAWS[other]()) for other in others)), "floor.stiffness")


@pytest.mark.parametrize("law", ["penalty", "constraint"])
@pytest.mark.filterwarnings("ignore:rollout. robot 0. not_finite")
def test_a_normal_without_a_direction(law):
    """Fail where the normal of a floor becomes zero."""
    model = lying(Obstacle(SHAPES["plane"](), *LAWS[law](), name="floor"))
    normal = Control(values={"floor.normal": torch.tensor([[0.0, 0, 0], [0, 0, 1]], dtype=torch.float64)})
    _, info = ImplicitEuler(1e-3).step(model, model.initial_state(batch=2), normal)
    assert info.status.tolist() == [Status.NOT_FINITE, Status.CONVERGED]


@pytest.mark.parametrize("constant", ["tolerance", "stiffness", "friction"])
@pytest.mark.filterwarnings("ignore:rollout. robot 0. not_finite")
def test_contact_between_parts(constant):
    """Fail where a constant of contact between parts is NaN, though no parts are near each other then."""
    model = lying(SelfContact(*LAWS["penalty"]()))
    assert_fails(model, f"self_contact.{constant}")
