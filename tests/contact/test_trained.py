"""Constants of contact that are trained: names, gradients, shapes."""

import pytest
import torch
from torch import nn

from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, forces, straight, trainable, unroll
from torchdismech.contact import (
    Barrier,
    Complementarity,
    Friction,
    HalfSpace,
    Obstacle,
    Path,
    Penalty,
    SelfContact,
    Sphere,
)


def on_floor(response, friction, *others, gap=0.0):
    """Return a rod over a rough floor, pulled along it by a fifth of its weight, and what else it may touch."""
    builder = RobotBuilder()
    height = 5e-3 + gap
    builder.add_rod(straight((0, 0, height), (0.2, 0, height), 5), Circle(5e-3), Material(1e6, 1000.0))
    builder.add_force(forces.Gravity((0.2 * 9.81, 0.0, -9.81)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), response, friction, name="floor"))
    for contact in others:
        builder.add_contact(contact)
    return builder.finalize()


def value(model, name):
    """Return a constant's present value."""
    module, attribute = trainable.constants(model)[name]
    return getattr(module, attribute).detach()


class Foam(Sphere):
    """A ball with a constant that a law has, too."""

    def __init__(self, center, radius, stiffness):
        super().__init__(center, radius)
        self.stiffness = nn.Parameter(torch.tensor(stiffness, dtype=torch.float64), requires_grad=False)
        self.per_robot = (*Sphere.per_robot, "stiffness")


def test_constants_of_contact_have_names():
    """Name laws and shapes by obstacle, the same again of self-contact, and nothing that a law does not have."""
    model = on_floor(
        Penalty(50.0, 1e-3),
        Friction(0.1, 1e-2),
        Obstacle(Sphere((0, 0, 1), 0.1), Barrier(20.0, 1e-3), path=Path.uniform((0, 0, 1)), name="ball"),
        Obstacle(Foam((0, 0, 2), 0.1, 7.0), Complementarity(), Friction(0.3), name="foam"),
        SelfContact(Penalty(3.0, 1e-3), Friction(0.4, 1e-3, static=0.5)),
    )
    known = trainable.constants(model)
    law = ("stiffness", "tolerance", "friction", "slip_velocity")
    expected = {f"{owner}.{name}" for owner in ("floor", "self_contact") for name in law}
    expected |= {
        "self_contact.static_friction",
        "self_contact.release",
        "floor.point",
        "floor.normal",
        "ball.stiffness",
        "ball.tolerance",
        "ball.center",
        "ball.radius",
        "ball.displacements",
    }
    # a constraint has no stiffness, so that of the shape is alone; its tolerance is the solver's
    expected |= {"foam.friction", "foam.stiffness", "foam.center", "foam.radius"}
    owners = ("floor", "ball", "foam", "self_contact")
    assert {name for name in known if name.partition(".")[0] in owners} == expected
    assert value(model, "floor.friction") == 0.1 and value(model, "self_contact.friction") == 0.4
    assert value(model, "ball.radius") == 0.1 and value(model, "foam.stiffness") == 7.0
    assert "edge_contact_radius" not in known  # contact has copied it


def test_names_of_law_and_shape_stay_apart():
    """Name a shape's constant by the shape where the law has one of that name; refuse names that come up twice."""
    model = on_floor(*rough(), Obstacle(Foam((0, 0, 2), 0.1, 7.0), Penalty(50.0, 1e-3), name="foam"))
    assert value(model, "foam.stiffness") == 50.0 and value(model, "foam.shape.stiffness") == 7.0

    class Wall(forces.Viscous):
        """A force with a constant that is called as an obstacle's."""

        per_robot = ("viscosity", "stiffness")
        stiffness = torch.ones(())

    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 1), (0.2, 0, 1), 3), Circle(5e-3), Material(1e6, 1000.0))
    builder.add_force(Wall(0.1))
    builder.add_contact(Obstacle(Sphere((0, 0, 0), 0.1), Penalty(50.0, 1e-3), name="Wall"))
    with pytest.raises(InputError, match=r"'Wall.stiffness'; give the obstacle or contact another name"):
        trainable.constants(builder.finalize())


def rough():
    """Return a penalty with friction on which the rod above slides, slowly enough that the slip velocity matters."""
    return Penalty(50.0, 1e-3), Friction(0.1, 5e-2)


LAWS = {
    "penalty": (rough, ("floor.stiffness", "floor.friction", "floor.slip_velocity", "floor.tolerance")),
    "barrier": (lambda: (Barrier(50.0, 1e-3), Friction(0.1, 1e-2)), ("floor.stiffness", "floor.friction")),
    "complementarity": (lambda: (Complementarity(), Friction(0.1)), ("floor.friction",)),
}


@pytest.mark.parametrize(("law", "names"), LAWS.values(), ids=LAWS.keys())
def test_gradient_by_trained_contact(law, names):
    """Compare the gradient of two steps by the logarithm of each constant with central differences."""
    integrator = ImplicitEuler(5e-3, force_tolerance=1e-13, relative_tolerance=1e-13)

    def loss(model):
        state = model.initial_state()
        velocity = torch.zeros_like(state.velocity)
        velocity[:, :15] = torch.tensor([0.02, 0.0, -0.05], dtype=torch.float64).repeat(5)
        state = state.replace(velocity=velocity)
        for _ in range(2):
            state, info = integrator.step(model, state)
            assert info.converged.all()
        return 1e4 * (state.positions * torch.linspace(1, 2, 15, dtype=torch.float64).view(5, 3)).sum()

    # falls 0.4 mm in the first step; a barrier has to start with a gap
    model = on_floor(*law(), gap=2e-4)
    factors = [trainable.scaled(model, [name]) for name in names]
    gradient = torch.autograd.grad(loss(model), [f.log_factor for f in factors])
    for factor, ours in zip(factors, gradient, strict=True):
        with torch.no_grad():
            sides = []
            for change in (1e-4, -1e-4):
                factor.log_factor.fill_(change)
                sides.append(loss(model).item())
            factor.log_factor.fill_(0.0)
        difference = (sides[0] - sides[1]) / 2e-4
        assert abs(difference) > 1e-4
        # differences err by the step squared, 1e-8 of the third derivative, and by rounding over the step
        assert ours.item() == pytest.approx(difference, rel=1e-5)


@pytest.mark.parametrize("centre_line", ["straight", "smooth"])
def test_gradient_of_contact_that_is_near_and_does_not_touch(centre_line):
    """Give zero by a law whose pairs are looked at, as they are near, and of which none touches."""
    builder = RobotBuilder()
    rod, soft = Circle(2e-3), Material(1e6, 1100.0)
    builder.add_rod(straight((-0.05, 0, 0.02), (0.05, 0, 0.02), nodes=6), rod, soft)
    builder.add_rod(straight((0.003, -0.05, 0.0246), (0.003, 0.05, 0.0246), nodes=6), rod, soft)
    builder.add_contact(SelfContact(Penalty(200.0, 5e-4), Friction(0.3, 1e-2), centre_line=centre_line))
    model = builder.finalize()
    trained = trainable.scaled(model, ["self_contact.stiffness", "self_contact.friction"])
    run = unroll(model, model.initial_state(), ImplicitEuler(dt=2e-3), 3)
    run.positions[-1].sum().backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in trained.parameters())


def test_one_factor_of_friction_for_each_robot():
    """Train a friction coefficient of each robot: they slide as the same robots with these coefficients."""
    model = on_floor(*rough())
    factor = trainable.scaled(model, ["floor.friction"], shape=(3, 1))
    assert model.batch == 3
    scales = torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64)
    with torch.no_grad():
        factor.log_factor.copy_(scales.log())
    trained, _ = ImplicitEuler(0.01).step(model, model.initial_state())
    given = on_floor(Penalty(50.0, 1e-3), Friction(0.1 * scales, 5e-2))
    expected, info = ImplicitEuler(0.01).step(given, given.initial_state())
    assert info.converged.all()
    # exp(log(2)) rounds: 1e-16 of coefficients of 0.1, and so of displacements
    torch.testing.assert_close(trained.q, expected.q, rtol=0, atol=1e-14)
    assert trained.q[0, 0] > trained.q[1, 0] > trained.q[2, 0]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("floor.friction", (5,)), ("floor.stiffness", (3, 5)), ("ball.radius", (5,)), ("ball.center", (5,))],
)
def test_shapes_that_contact_cannot_take_are_refused(name, shape):
    """Refuse one number of each node: contact has one, or one of each robot."""
    model = on_floor(*rough(), Obstacle(Sphere((0.1, 0.2, 1), 0.1), Penalty(50.0, 1e-3), name="ball"))
    with pytest.raises(InputError, match=f"{name}: a change of shape"):
        trainable.scaled(model, [name], shape=shape)


MOTION = torch.tensor([[0.0, 0.0, 0.0], [0.01, 0.0, 0.004]], dtype=torch.float64)


@pytest.mark.parametrize("law", ["penalty", "complementarity"])
def test_gradient_by_the_motion_of_an_obstacle(law):
    """Compare the gradient of some steps by a path with central differences; friction feels its velocity."""
    response, friction = LAWS[law][0]()
    integrator = ImplicitEuler(5e-3, force_tolerance=1e-13, relative_tolerance=1e-13)

    def moved(motion):
        """Return a model with a ball that comes from below."""
        ball = Sphere((0.1, 0, -0.1), 0.099)
        return on_floor(response, None, Obstacle(ball, response, friction, Path([0.0, 0.02], motion), "ball"), gap=5e-3)

    def loss(model):
        run = unroll(model, model.initial_state(), integrator, 4, throw=True)
        return (run.positions[-1, 0] * torch.linspace(0.5, 1.5, 15).view(5, 3)).sum()

    model = moved(MOTION)
    shift = trainable.shifted(model, ["ball.displacements"], 1.0, (2, 3))
    loss(model).backward()
    for axis in (0, 2):
        change = torch.zeros_like(MOTION)
        change[1, axis] = 1e-7
        expected = float(loss(moved(MOTION + change)) - loss(moved(MOTION - change))) / 2e-7
        # differences of steps that are solved to 1e-13 N
        assert float(shift.shift.grad[1, axis]) == pytest.approx(expected, rel=1e-4)


def test_motion_that_requires_gradients_is_refused():
    """Say how the motion is trained in the model; a control sets no table over time."""
    with pytest.raises(InputError, match=r"Path.displacements: .*trainable.shifted\(model, \[.NAME.displacements"):
        Path([0.0, 0.02], MOTION.clone().requires_grad_())
