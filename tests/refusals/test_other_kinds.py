"""Robots of another kind than a function is for: rods and shells, chains, arms."""

import pytest
import torch

from tests.constant_curvature.arms import paper_arm
from tests.rigid.chains import cable
from tests.rods import rod_through
from torchdismech import (
    Circle,
    ImplicitEuler,
    InputError,
    Material,
    Static,
    follow,
    modes,
    rollout,
    straight,
    trainable,
    unroll,
)
from torchdismech.constant_curvature import ArmIntegrator
from torchdismech.rigid import Radau


def rod():
    """Return a rod of four edges, clamped at its start."""
    return rod_through(straight((0, 0, 0), (0.3, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0)).finalize()


FOR_RODS = r"is for rods and shells \(Model\), got "
ARM, CHAIN = (
    "PneumaticArm; that takes constant_curvature.ArmIntegrator",
    "RigidChain; that takes rigid.Radau or rigid.Sdirk2",
)
OTHER_KINDS = {
    "euler on an arm": (lambda: ImplicitEuler(1e-3), paper_arm, f"ImplicitEuler {FOR_RODS}{ARM}"),
    "static on a chain": (Static, lambda: cable(3), f"Static {FOR_RODS}{CHAIN}"),
    "radau on a rod": (
        lambda: Radau(1e-3),
        rod,
        r"Radau is for chains of rigid elements \(RigidChain\), got Model; that takes ImplicitEuler, .* or Static",
    ),
    "arm's on a rod": (
        lambda: ArmIntegrator(1e-3),
        rod,
        r"ArmIntegrator is for pneumatic arms \(PneumaticArm",
    ),
    "arm's on a chain": (lambda: ArmIntegrator(1e-3), lambda: cable(3), CHAIN),
}


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_robots_of_another_kind_are_not_stepped(name):
    """Say which robots an integrator steps, which came and what to take for them, in a step and in runs."""
    integrator, make, message = OTHER_KINDS[name]
    integrator, model = integrator(), make()
    state = model.initial_state()
    for run in (
        lambda: integrator.step(model, state),
        lambda: rollout(model, state, integrator, 1),
        lambda: unroll(model, state, integrator, 1),
    ):
        with pytest.raises(InputError, match=message):
            run()


def test_robots_with_trained_constants_keep_their_name():
    """Name the class of a chain whose constants are trained, of which torch makes another one."""
    chain = cable(3)
    trainable.scaled(chain, [next(iter(trainable.constants(chain)))])
    assert type(chain).__name__ != "RigidChain"
    with pytest.raises(InputError, match=f"{FOR_RODS}RigidChain; that takes"):
        ImplicitEuler(1e-3).step(chain, chain.initial_state())


def test_robots_of_another_kind_have_no_modes_and_no_paths():
    """Refuse arms and chains by name."""
    arm, chain = paper_arm(), cable(3)
    with pytest.raises(InputError, match=f"modes {FOR_RODS}PneumaticArm"):
        modes(arm, arm.initial_state(), 2)
    with pytest.raises(InputError, match=f"modes {FOR_RODS}RigidChain; chains have rigid.natural_frequencies"):
        modes(chain, chain.initial_state(), 2)
    with pytest.raises(InputError, match=f"follow {FOR_RODS}RigidChain"):
        follow(chain, chain.initial_state())


def test_states_of_another_kind_are_refused_by_arms_and_chains():
    """Name both kinds of states; Python named an attribute that the state lacks."""
    arm, chain = paper_arm(), cable(3)
    with pytest.raises(InputError, match="state: expected that of pneumatic arms, .* got ChainState"):
        ArmIntegrator(dt=1e-3).step(arm, cable(8).initial_state())
    with pytest.raises(InputError, match="state: expected that of chains of rigid elements, .* got ArmState"):
        chain.forward_dynamics(arm.initial_state())


@pytest.mark.parametrize("kind", ["arm", "chain"])
def test_states_of_arms_and_chains_have_the_dtype_of_the_model(kind):
    """Name the state and both dtypes; torch named matrices m1 and m2."""
    if kind == "arm":
        model, integrator = paper_arm(), ArmIntegrator(dt=1e-3)
    else:
        model, integrator = cable(3), Radau(1e-2)
    with pytest.raises(InputError, match="State.q: expected torch.float64, as the model is, got torch.float32"):
        integrator.step(model, model.initial_state().to(torch.float32))
