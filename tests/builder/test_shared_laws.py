"""Energies and laws that two models, or two terms, are given: refused, as their constants go by a model's names."""

import numpy as np
import pytest
import torch

import models
from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, straight, trainable
from torchdismech.elastic import Dahl, LinearElastic


def rod():
    """Return a builder with a straight rod."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 5), Circle(2e-3), Material(1e6, 1100.0))
    return builder


def test_models_share_no_numbers():
    """Load numbers into one model of a builder: neither the other, nor the builder, nor what it was given changes."""
    radius, contact_radius = (torch.full((4,), size, dtype=torch.float64) for size in (2e-3, 3e-3))
    builder = RobotBuilder()
    nodes = straight((0, 0, 0), (0.1, 0, 0), 5)
    builder.add_rod(nodes, Circle(radius), Material(1e6, 1100.0), contact_radius=contact_radius)
    one, two = builder.finalize(), builder.finalize()
    before = {name: tensor.clone() for name, tensor in two.state_dict().items()}
    one.load_state_dict({name: 2 * tensor for name, tensor in before.items()})
    radius *= 3
    builder.nodes[:] = 0.0
    assert all(torch.equal(tensor, before[name]) for name, tensor in two.state_dict().items())
    assert torch.equal(two.body.edge_radius, builder.finalize().body.edge_radius)
    assert (contact_radius == 3e-3).all() and np.array_equal(builder.nodes, nodes)


WAYS = {
    "replaced": (lambda: LinearElastic({"EA": 10.0}), lambda builder, law: builder.replace_energy("stretch", law)),
    "added": (lambda: LinearElastic({"more": 10.0}), lambda builder, law: builder.add_energy("stretch", law)),
    "dissipation": (lambda: LinearElastic({"EA": 0.1}), lambda builder, law: builder.add_dissipation("stretch", law)),
    "inelastic": (lambda: Dahl({"EA": 10.0}, 0.1), lambda builder, law: builder.add_inelastic("stretch", law)),
}


@pytest.mark.parametrize(("make", "give"), WAYS.values(), ids=WAYS)
def test_laws_of_two_models(make, give):
    """Refuse a law that another model has, before anything of it is changed, also from the same builder."""
    law, one, two = make(), rod(), rod()
    give(one, law)
    give(two, law)
    model = one.finalize()
    for builder in (one, two):
        with pytest.raises(InputError, match=rf"^finalize: this {type(law).__name__} belongs to another model"):
            builder.finalize(dtype=torch.float32)
    assert {parameter.dtype for parameter in law.parameters()} == {torch.float64}
    assert bool(ImplicitEuler(1e-3).step(model, model.initial_state())[1].converged.all())


def test_trained_laws_of_two_models():
    """Refuse a law that is trained in another model."""
    law, one, two = LinearElastic({"EA": 10.0}), rod(), rod()
    one.replace_energy("stretch", law)
    two.replace_energy("stretch", law)
    trainable.scaled(one.finalize(), ["stretch.EA"])
    with pytest.raises(InputError, match="^finalize: this LinearElastic belongs to another model"):
        two.finalize()


def test_laws_given_twice():
    """Refuse a law that two terms of one robot are given."""
    builder, law = rod(), LinearElastic({"k": 1.0})
    builder.add_dissipation("stretch", law)
    builder.add_energy("stretch", law)
    with pytest.raises(InputError, match="^finalize: this LinearElastic belongs to another model, or to another part"):
        builder.finalize()


def test_a_robot_that_is_refused_keeps_no_law():
    """Take a law again when the robot that was given it was not made."""
    builder, law = rod(), LinearElastic({"EA": 10.0})
    builder.replace_energy("stretch", law)
    builder.clamp(nodes=[0], axes="")
    with pytest.raises(InputError, match="clamp"):
        builder.finalize()
    other = rod()
    other.replace_energy("stretch", law)
    assert other.finalize().term("stretch").energy is law


def test_networks_are_shared():
    """Take a network for two robots, which train it together."""
    network, found = models.ConvexEnergy(strains=1), []
    for _ in range(2):
        builder = rod()
        builder.add_energy("stretch", network)
        model = builder.finalize()
        found.append(model.term("stretch").energy)
    assert all(network in energy.energies.values() for energy in found)
