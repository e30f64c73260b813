"""Constants of a config: what each is for single robots, what is said of it, what is refused."""

import pytest
import torch

from torchdismech import Circle, InputError, Material, RobotBuilder, forces, meshes, straight, trainable
from torchdismech.actuation import AtNodes, Tendons
from torchdismech.contact import Friction, HalfSpace, Obstacle, Path, Penalty, Sphere
from torchdismech.magnetics import Dipole, Gradient, Magnetic, MovingDipole, Table
from training.config import Constant
from training.robots.constants import Named, Trained

ROBOTS = 3  # as many as vectors have components, and tables rows: a change that meets the wrong dimension would fit
TIMES, ALONG_Z = [0.0, 1.0, 2.0], [[0.0, 0.0, 1.0]] * 3


def builder_with_everything() -> RobotBuilder:
    """Return a rod, a shell and what may act on them: constants of one number, lists, tables, tables over time."""
    builder = RobotBuilder()
    rod = builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 4), Circle(5e-3), Material(1e6, 1e3, relaxation_time=0.01))
    builder.clamp([rod[0], rod[1]])
    disc = meshes.disc(0.1, 0.05)
    builder.add_shell(disc.nodes + (0, 0, 0.5), disc.triangles, 1e-3, Material(1e6, 1e3, 0.3), "midedge")
    fields = [
        Table(TIMES, ALONG_Z),
        Gradient((0, 0, 1.0), [[1.0, 0, 0], [0, 1.0, 0], [0, 0, -2.0]]),
        Dipole((0, 0, 1.0), (0, 0, 9.0)),
        MovingDipole(TIMES, ALONG_Z, [[0.0, 0.0, 9.0]] * 3),
    ]
    for field in fields:
        builder.add_force(Magnetic([[1.0, 2.0, 3.0]] * 3, field))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.PointForce(rod[-1:], (0, 0, 1.0)))
    builder.add_force(forces.Resistive(0.1, 0.2))
    builder.add_force(Tendons([AtNodes([1, 2, 3], (0, 0.01, 0.0))], tension=1.0))
    builder.add_contact(Obstacle(Sphere((0, 0, -2.0), 0.1), Penalty(1e3, 1e-3), Friction(0.3, 1e-3), name="ball"))
    path = Path(TIMES, [[0.0, 0.0, 0.1 * k] for k in range(3)])
    builder.add_contact(Obstacle(HalfSpace((0, 0, -1.0), (0, 0, 1.0)), Penalty(1e3, 1e-3), name="floor", path=path))
    return builder


@pytest.mark.parametrize("per", ["all", "element"])
def test_every_constant_of_a_robot_may_differ_from_robot_to_robot(per):
    """Move each constant for three robots at once, and find in each what moving it for one robot alone gives."""
    model = builder_with_everything().finalize()
    names = [name for name, place in trainable.constants(model).items() if getattr(*place).numel()]
    assert {"Magnetic.magnetisation", "Magnetic2.field.gradient", "Tendons.offset", "floor.displacements"} < {*names}
    places = trainable.constants(model)
    named = Named(places, model.dtype, model.device)
    for name in names:
        single = per == "element" and not getattr(*places[name]).dim()
        constant = Constant(tensors=[name], kind="shift", unit=2.0, per="all" if single else per)
        entry = Trained(named, name, constant, {})
        at, own = getattr(places[name][0], "robot_dimension", 0), entry.parameter.detach().clone()
        moves = torch.arange(1.0, ROBOTS * own.numel() + 1, dtype=model.dtype).view(ROBOTS, -1)
        alone = []
        for move in moves:
            entry.parameter.data = own + move.view_as(own)
            value = entry.value
            alone.append(value.select(at, 0) if value.dim() > 1 + at else value)
        entry.parameter.data = own
        entry.parameter.data = entry.for_robots(moves)
        assert entry.value.shape[at] == ROBOTS and entry.value.dim() >= 2 + at, name
        expected = torch.stack(alone, at).view_as(entry.value)
        torch.testing.assert_close(entry.value, expected, rtol=0, atol=0, msg=name)  # the same sums


def test_a_constant_is_shown_without_the_zeros_that_a_factor_keeps():
    """Show a magnetisation along z by its own number, not by a third of it; a mean is that number's, too."""
    builder = RobotBuilder()
    rod = builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 4), Circle(5e-3), Material(1e6, 1e3))
    builder.clamp([rod[0], rod[1]])
    builder.add_force(Magnetic((0.0, 0.0, 4e4), (0.0, 0.0, 1e-3)))
    model = builder.finalize()
    named = Named(trainable.constants(model), model.dtype, model.device)
    constant = Constant(tensors=["Magnetic.magnetisation"], mean=8e4, spread=0.1)
    entry = Trained(named, "magnet", constant, {})
    assert entry.value_of_trained.tolist() == [4e4]
    assert float(entry.center) == pytest.approx(0.6931471805599453)  # ln 2


def test_what_is_refused_is_told_by_the_keys_of_a_config():
    """Name the entry and what to set in it: who writes a config calls no function."""
    model = builder_with_everything().finalize()
    named = Named(trainable.constants(model), model.dtype, model.device)
    Trained(named, "stiffness", Constant(tensors=["stretch.EA"]), {})
    with pytest.raises(InputError, match="^constants.again: stretch.EA is trained by another entry already: leave it"):
        Trained(named, "again", Constant(tensors=["stretch.EA"]), {})
    with pytest.raises(InputError, match='^constants.curl: .*is zero wherever .*; set kind = "shift" and unit$'):
        Trained(named, "curl", Constant(tensors=["bend_twist.natural_kappa1"]), {})
