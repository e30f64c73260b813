"""Rods that fall on each other, and their steps with and without recordings."""

import torch

from torchdismech import Circle, Material, RobotBuilder, forces, straight
from torchdismech.contact import Complementarity, Friction, Penalty, SelfContact
from torchdismech.integrate.recorded import recording

TIGHT = {"force_tolerance": 1e-12, "relative_tolerance": 1e-10}  # so that roots differ by no more than rounding
STEPS = 80


def dropped(friction=0.3, floor=None, law=None, robots=1, drop=0.0005, load=None, centre_line="straight"):
    """Return rods that fall across one that is held, in a model of its own, and states of `robots` from which they do.

    Parameters
    ----------
    friction : coefficient; 0: none.
    floor : another contact.
    law : of the contact of the rods; by default a penalty.
    drop : from which height [m].
    load : a force on the rods, beside their weight.
    centre_line : of the contact of the rods.
    """
    builder, material = RobotBuilder(), Material(1e6, 1000.0)
    low = builder.add_rod(straight((-0.1, 0, 0), (0.1, 0, 0), 9), Circle(4e-3), material, name="low")
    high = 8e-3 + drop
    builder.add_rod(straight((0.01, -0.08, high), (0.01, 0.1, high), 10), Circle(4e-3), material, name="high")
    builder.clamp(nodes=[int(low[0]), int(low[-1])])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    law = Penalty(300.0, 1e-3) if law is None else law
    slip = [] if isinstance(law, Complementarity) else [1e-2]
    rubs = [Friction(friction, *slip)] if friction else []
    builder.add_contact(SelfContact(law, *rubs, centre_line=centre_line))
    if load is not None:
        builder.add_force(load)
    if floor is not None:
        builder.add_contact(floor)
    model = builder.finalize(compile=False)
    velocity = torch.zeros(robots, model.n_dofs)
    velocity[:, 27 : 3 * 19 : 3] = torch.linspace(0, 0.3, robots)[:, None]
    return model, model.initial_state(robots, velocity=velocity)


def course(model, state, integrator, count=STEPS):
    """Return states and reports of single steps."""
    steps = []
    for _ in range(count):
        steps.append(integrator.step(model, state if not steps else steps[-1][0]))
    return steps


def unrecorded(monkeypatch, *given, **kept):
    """Return the same as `course`, without recordings."""
    with monkeypatch.context() as patch:
        patch.setattr(recording, "STEPS_BEFORE_RECORDING", 10**9)
        return course(*given, **kept)


def assert_same(steps, others, same_rounds=True):
    """Check that two courses took the same steps: states, iterations and contact reports.

    Parameters
    ----------
    same_rounds : whether iterations are compared.
    """
    for (after, info), (other, other_info) in zip(steps, others, strict=True):
        # both solve the same equations to 1e-12 N; states differ by rounding, which 60 steps of contact amplify
        assert float((after.q - other.q).abs().max()) < 1e-10
        assert bool(info.converged.all())
        assert torch.equal(info.iterations, other_info.iterations) or not same_rounds
        assert info.contact.keys() == other_info.contact.keys()
        for name, value in info.contact.items():
            expected = other_info.contact[name]
            assert value.dtype == expected.dtype and value.shape == expected.shape
            # forces are 300 N/m times distances, so 1e-7 N is 3e-10 m
            assert torch.allclose(value.double(), expected.double(), rtol=1e-6, atol=1e-7), name
