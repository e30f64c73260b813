"""Magnetic fields: their values, their derivatives, which arguments they take."""

import math
import warnings

import pytest
import torch

from tests.magnetics.robots import FIELDS, coil
from torchdismech import Circle, Control, InputError, Material, RobotBuilder, magnetics, meshes, straight

SOUND = [[1.0, 2.0, 0.5], [2.0, -3.0, 0.1], [0.5, 0.1, 2.0]]  # a gradient that a static field may have


def times(*numbers):
    """Return times (B,)."""
    return torch.tensor(numbers, dtype=torch.float64)


def test_rotating():
    """Turn from the first direction to the second."""
    field = magnetics.Rotating(torch.tensor([[2.0], [3.0]], dtype=torch.float64), 0.5, (2.0, 0, 0), (0, 0, 5.0), 0.1)
    found = field.at(times(0.3, 0.7))
    angles = [math.pi * t + 0.1 for t in (0.3, 0.7)]
    expected = [[size * math.cos(a), 0.0, size * math.sin(a)] for size, a in zip((2, 3), angles, strict=True)]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-14)


def test_table():
    """Be linear between rows, held outside; one row is constant; robots may have tables of their own."""
    field = magnetics.Table([1.0, 2.0], [[0.0, 0, 0], [1.0, 2.0, 3.0]])
    found = field.at(times(0.0, 1.25, 5.0))
    assert torch.allclose(found, times(0, 0.25, 1.0)[:, None] * times(1.0, 2.0, 3.0), atol=1e-15)
    assert magnetics.Table([1.0], [[1.0, 2, 3]]).at(times(0.0, 4.0)).tolist() == [[1.0, 2, 3]] * 2
    both = torch.stack([torch.zeros(2, 3), torch.ones(2, 3)], dim=1).double()
    both[1] *= 2
    assert magnetics.Table([1.0, 2.0], both).at(times(2.0, 1.5)).tolist() == [[0.0] * 3, [1.5] * 3]


@pytest.mark.parametrize("name", ["gradient", "dipole", "moving dipole"])
def test_closed_forms(name):
    """Have the derivatives that autograd finds."""
    field = FIELDS[name]()
    x, moment = torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(2, 4, 3, dtype=torch.float64)
    found = field.derivatives(x, times(0.0, 1.0), moment)
    expected = magnetics.Field.derivatives(field, x, times(0.0, 1.0), moment)
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-11, atol=1e-12 * b.abs().max().item())


def test_dipole():
    """Have on its axis and beside it the fields of the textbook, without divergence and curl."""
    field = magnetics.Dipole((0, 0, 5.0), (0, 0, 0))
    places = torch.tensor([[[0, 0, 0.2], [0.2, 0, 0]]], dtype=torch.float64)
    strength = 1e-7 * 5.0 / 0.2**3
    found = field(places, times(0.0))[0]
    expected = torch.tensor([[0, 0, 2 * strength], [0, 0, -strength]], dtype=torch.float64)
    assert torch.allclose(found, expected, rtol=1e-13, atol=1e-20)
    _, gradient, _ = field.derivatives(places + 0.1, times(0.0))
    size = float(gradient.abs().max())
    assert gradient.diagonal(dim1=-2, dim2=-1).sum(-1).abs().max() < 1e-14 * size
    assert (gradient - gradient.mT).abs().max() < 1e-14 * size


def test_moving_dipole():
    """Be a dipole at each time: at rows, halfway between them, and where it is held; of each robot its own."""
    moments = torch.tensor([[0.0, 0, 5.0], [3.0, 0, 4.0]], dtype=torch.float64)
    centers = torch.tensor([[0.0, 0, 0], [0.1, 0.2, 0]], dtype=torch.float64)
    places = torch.randn(1, 4, 3, dtype=torch.float64) + 1.0
    field = magnetics.MovingDipole([1.0, 2.0], moments, centers)
    for time, share in ((0.0, 0.0), (1.0, 0.0), (1.5, 0.5), (2.0, 1.0), (7.0, 1.0)):
        magnet = magnetics.Dipole(*(rows[0] + share * (rows[1] - rows[0]) for rows in (moments, centers)))
        torch.testing.assert_close(field(places, times(time)), magnet(places, times(time)), rtol=1e-14, atol=0)
    each = magnetics.MovingDipole([1.0, 2.0], torch.stack([moments, 2 * moments], 1), torch.stack([centers] * 2, 1))
    found = each(places.expand(2, -1, -1), times(1.3, 1.3))
    torch.testing.assert_close(found[1], 2 * found[0], rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: magnetics.Constant((1.0, 2.0)), r"field: expected shape \(3,\)"),
        (lambda: magnetics.Rotating(1.0, 2.0, (0, 0, 0)), "Rotating.first: expected a direction"),
        (lambda: magnetics.Rotating(1.0, 2.0, (1, 0, 0), (1, 1, 0)), "right angles"),
        (lambda: magnetics.Rotating((1.0, 2.0), 2.0), "Rotating.amplitude: expected one number"),
        (lambda: magnetics.Table([0.0, 0.0], torch.zeros(2, 3)), "rising"),
        (lambda: magnetics.Table([0.0, 1.0], torch.zeros(3, 3)), r"expected \(2, 3\) or \(2, B, 3\)"),
        (
            lambda: magnetics.MovingDipole([1.0, 0.0], torch.zeros(2, 3), torch.zeros(2, 3)),
            "MovingDipole.times: .*rising",
        ),
        (
            lambda: magnetics.MovingDipole([0.0, 1.0], torch.zeros(2, 3), torch.zeros(3)),
            "MovingDipole.centers: expected",
        ),
        (lambda: magnetics.Gradient((0, 0, 1), torch.zeros(3)), "Gradient.gradient"),
        (lambda: magnetics.Dipole((0, 0, 1), (0, 0)), "Dipole.center"),
        (lambda: magnetics.Field().at(times(0.0)), "has to define at"),
        (lambda: magnetics.Field()(torch.zeros(1, 1, 3), times(0.0)), "has to define forward"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    """Name what was expected."""
    with pytest.raises((InputError, TypeError), match=message):
        make()


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        ([[0, 0, 0], [0, 0, 0], [0, 0, 1.0]], "a trace of 1 T/m, a divergence; a static"),
        ([[0, 0, 0], [0, 0, 0.4], [0, 0, 0]], "an antisymmetric part of up to 0.2 T/m, a curl; a static"),
        ([[-2.0, 0.4, 0], [0, 0, 0], [0, 0, 0]], "a trace of -2 T/m, a divergence and an antisymmetric part of up to"),
        ([SOUND, [[1e-3, 0, 0], [0, 0, 0], [0, 0, 0]]], "a trace of 0.001 T/m"),  # of the second of two robots
    ],
)
def test_gradients_that_no_static_field_has_are_warned_of(matrix, words):
    """Say what a gradient has that it should not have; a sound one, rounded to float32, is taken without a word."""
    with pytest.warns(UserWarning, match=f"Gradient.gradient: has {words}.* expected a symmetric matrix"):
        magnetics.Gradient((0, 0, 1), matrix)
    turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        magnetics.Gradient((0, 0, 1), turn @ torch.tensor(SOUND) @ turn.T)
        magnetics.Gradient((0, 0, 1), torch.zeros(3, 3))


def beside_a_magnet(center, shell=False, magnetisation=(1e4, 0.0, 0.0)):
    """Build a robot of 0.1 m, its edges 10 mm long, in the field of one magnet or of several, a robot each."""
    builder, field = RobotBuilder(), magnetics.Dipole((0.0, 0.0, 1.0), center)
    if shell:
        mesh = meshes.rectangle(0.1, 0.02, spacing=0.01)
        builder.add_shell(mesh.nodes, mesh.triangles, 1e-3, Material(1e6, 1000.0))
        builder.add_force(magnetics.MagneticShells(magnetisation, field))
    else:
        builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 11), Circle(1e-3), Material(1e6, 1000.0))
        builder.add_force(magnetics.Magnetic(magnetisation, field))
    return builder.finalize()


@pytest.mark.parametrize("shell", [False, True], ids=["rod", "shell"])
def test_magnets_in_or_beside_a_robot_are_warned_of(shell):
    """Say so where elements are too long for the field of a magnet; in the magnet itself forces of 1e60 N counted."""
    what = "triangle" if shell else "rod edge"
    with pytest.warns(UserWarning, match=f"Dipole: the magnet is .* m from the middle of a magnetised {what} that is"):
        beside_a_magnet((0.05, 0.0, 5e-3), shell)
    with pytest.warns(UserWarning, match="the magnet is 0.004 m" if not shell else "the magnet is"):
        beside_a_magnet(torch.tensor([[0.05, 0.0, 0.1], [0.055, 0.0, 4e-3]], dtype=torch.float64), shell)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        beside_a_magnet((0.05, 0.0, 2e-2), shell)


def test_what_is_not_magnetised_may_be_beside_a_magnet():
    """Leave alone edges without magnetisation, however near."""
    magnetisation = torch.zeros(10, 3, dtype=torch.float64)
    magnetisation[0, 0] = 1e4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        beside_a_magnet((0.055, 0.0, 1e-3), magnetisation=magnetisation)


@pytest.mark.parametrize("given", [lambda x: x[..., :2], lambda x: x[0, 0], lambda x: None])
def test_fields_that_give_no_vectors_are_refused(given):
    """Name a user's class and what its field returned, when the robot is built."""

    class Odd(magnetics.Field):
        def forward(self, position, time):
            return given(position)

    with pytest.raises(InputError, match=r"Odd: forward\(position, time\) has to return \(B, E, 3\).*, got "):
        coil(Odd())


def test_fields_of_each_robot_are_tried_with_as_many_robots():
    """Build robots in a field that reads its tensor of each robot as one with a row for each."""

    class Swell(magnetics.Field):
        per_robot = ("strength",)

        def __init__(self):
            super().__init__()
            self.register_buffer("strength", torch.tensor([[0.1], [0.2]], dtype=torch.float64))

        def forward(self, position, time):
            return self.strength.expand(position.shape[:2])[..., None] * position

    model, force = coil(Swell())
    assert model.batch == 2 and force(model.initial_state(), Control()).shape == (2, model.n_dofs)


def test_fields_print_their_numbers():
    """Show the numbers of a field, and the shapes of those of several robots."""
    assert repr(magnetics.Rotating(0.1, 2.0)) == "Rotating(amplitude=0.1, frequency=2.0, phase=0.0)"
    assert repr(magnetics.Constant(torch.zeros(2, 3))) == "Constant(value=(2, 3))"


def test_complex_numbers_are_refused():
    """Refuse numbers whose imaginary part torch would leave out."""
    for made in (
        lambda: magnetics.Constant(torch.ones(3, dtype=torch.complex64)),
        lambda: magnetics.Rotating(torch.tensor(1j), 2.0),
    ):
        with pytest.raises(InputError, match="expected numbers, got"):
            made()


def test_directions_of_rotating_fields_in_single_precision():
    """Take directions at right angles up to rounding of float32; most of them were refused."""
    torch.manual_seed(0)
    axes, _ = torch.linalg.qr(torch.randn(20, 3, 3, dtype=torch.float64))
    for first, second, _ in axes.float().mT:
        field = magnetics.Rotating(1.0, 1.0, first, second)
        assert torch.allclose(field.double().at(torch.zeros(1, dtype=torch.float64))[0], first.double(), atol=1e-6)


def test_modules_that_take_positions_alone():
    """Say what a module is called with; a layer of torch's, which no trial calls, ended in a TypeError of its own."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 4), Circle(2e-3), Material(1e6, 1000.0))
    builder.add_force(magnetics.Magnetic((1e4, 0, 0), torch.nn.Linear(3, 3)))
    with pytest.raises(
        InputError, match=r"magnetic field: Linear raised TypeError, called with positions .* has to take: "
    ):
        builder.finalize(compile=False).initial_state()
