"""Trained constants: factors keep signs, shifts move, names are found."""

import pytest
import torch

from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, forces, straight, trainable


def rod(youngs=1e6):
    """Return a hanging rod of six nodes."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.5, 0, 0), 6), Circle(5e-3), Material(youngs, 1000.0, relaxation_time=0.01))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.Viscous(0.1))
    builder.add_force(forces.Viscous(0.2))
    return builder.finalize()


def value(model, name):
    """Return a constant's present value."""
    module, attribute = trainable.constants(model)[name]
    return getattr(module, attribute).detach()


def test_every_constant_has_a_name():
    """Name elastic, viscous and natural constants, sizes, and forces by kind and number."""
    names = set(trainable.constants(rod()))
    assert {
        "mass", "stretch.EA", "stretch.rest_length", "stretch.viscous_EA", "bend_twist.EI1", "bend_twist.GJ",
        "bend_twist.viscous_EI2", "bend_twist.natural_kappa1", "Gravity.acceleration", "Viscous.viscosity",
        "Viscous2.viscosity",
    } <= names  # fmt: skip


def test_factor_moves_tied_constants_together_and_keeps_their_sign():
    """Multiply both by the same positive number, however low the parameter falls."""
    model = rod()
    before = {name: value(model, name) for name in ("bend_twist.EI1", "bend_twist.GJ")}
    factor = trainable.scaled(model, list(before))
    with torch.no_grad():
        factor.log_factor.fill_(-30.0)
    for name, base in before.items():
        assert torch.allclose(value(model, name), base * torch.exp(torch.tensor(-30.0, dtype=torch.float64)))
        assert (value(model, name) > 0).all()
    assert [p for p in model.parameters() if p.requires_grad] == [factor.log_factor]


def test_factors_per_element_and_per_robot():
    """Give a tensor the factor's shape; the model then knows its number of robots."""
    model = rod()
    trainable.scaled(model, ["bend_twist.EI2"], shape=(4,))
    assert value(model, "bend_twist.EI2").shape == (4,) and model.batch is None
    per_robot = trainable.scaled(model, ["bend_twist.EI1"], shape=(3, 1))
    assert model.batch == 3
    with torch.no_grad():
        per_robot.log_factor.copy_(torch.tensor([[0.0], [0.5], [1.0]]))
    state, info = ImplicitEuler(0.05).step(model, model.initial_state())
    assert info.converged.all() and state.batch == 3
    assert not torch.equal(state.q[0], state.q[2])


def test_shift():
    """Add unit x parameter, one for each element."""
    model = rod()
    shift = trainable.shifted(model, ["bend_twist.natural_kappa1"], unit=0.1, shape=(4,))
    with torch.no_grad():
        shift.shift += torch.tensor([0.0, 1.0, 2.0, 3.0])
    assert torch.allclose(value(model, "bend_twist.natural_kappa1"), torch.tensor([0, 0.1, 0.2, 0.3]).double())


def test_state_dict_goes_into_a_model_made_alike():
    """Read back what was trained."""
    models = [rod(), rod()]
    for model in models:
        trainable.scaled(model, ["bend_twist.EI1"])
        trainable.shifted(model, ["bend_twist.natural_kappa2"], unit=0.1, shape=(4,))
    with torch.no_grad():
        for parameter in models[0].parameters():
            if parameter.requires_grad:
                parameter += 0.3
    models[1].load_state_dict(models[0].state_dict())
    for name in ("bend_twist.EI1", "bend_twist.natural_kappa2"):
        assert torch.equal(value(models[0], name), value(models[1], name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: trainable.scaled(m, ["bend_twist.EI7"]), "bend_twist.EI1"),
        (lambda m: trainable.scaled(m, ["bend_twist.natural_kappa1"]), "shifted"),
        (lambda m: [trainable.scaled(m, ["mass"]) for _ in range(2)], "trained already"),
        (lambda m: trainable.scaled(m, ["mass"], shape=(5,)), "mass"),
        (lambda m: trainable.shifted(m, ["mass"], unit=0.0), "unit"),
    ],
)
def test_wrong_requests_are_refused(change, message):
    """Name what is wrong and what there is."""
    with pytest.raises(InputError, match=message):
        change(rod())
