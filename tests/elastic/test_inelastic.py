"""Materials that remember, in steps of all integrators, in files, in training, with gradients."""

import copy
import math

import pytest
import torch

from tests.elastic.inelastic_robots import (
    BENDING,
    EA,
    EI,
    INTEGRATORS,
    anisotropic,
    edge,
    laws,
    pulled,
    rod,
)
from tests.gradients.cases import EXACT, GradientCase
from tests.integrate.test_newton_matrix import balance_far_from_the_start, check_matrix
from torchdismech import (
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Static,
    Trajectory,
    forces,
    modes,
    rollout,
    trainable,
    unroll,
)
from torchdismech.elastic import Dahl, Maxwell, Past, Plastic
from torchdismech.integrate.recorded import recording


@pytest.mark.parametrize("law", ["dahl", "maxwell", "plastic", "of a user"])
@pytest.mark.parametrize("integrator", ["euler", "midpoint", "newmark", "static"])
def test_matrix_is_the_derivative_of_the_residual(integrator, law):
    """Match central differences of the residual, far from the start of a step."""
    check_matrix(*balance_far_from_the_start(INTEGRATORS[integrator], anisotropic(laws()[law])))


class OnRod(GradientCase):
    """A helix of two materials that remember."""

    integrator = ImplicitEuler(0.005, **EXACT)
    law = "dahl"

    def model(self):
        """Return two helices."""
        return anisotropic(laws()[self.law])


class TestDahlOnRod(OnRod):
    """Gradients with hysteresis."""


class TestMaxwellOnRodByMidpoint(OnRod):
    """Gradients with relaxation, where forces are evaluated in the middle."""

    integrator = ImplicitMidpoint(0.002, **EXACT)
    law = "maxwell"


class TestPlasticOnRod(OnRod):
    """Gradients where strains yield together."""

    law = "plastic"


class TestOwnLawOnRod(OnRod):
    """Gradients with a law that a user wrote."""

    law = "of a user"


@pytest.mark.parametrize("integrator", [ImplicitEuler(0.005, **EXACT), Static(**EXACT)])
@pytest.mark.parametrize("law", ["dahl", "maxwell", "plastic"])
def test_gradients_where_nothing_has_changed_yet(integrator, law):
    """Differentiate a straight rod's first step by its load at load 0, where most rods begin."""
    model = rod({"dahl": Dahl, "plastic": Plastic, "maxwell": Maxwell}[law](BENDING, 0.3))
    start = model.initial_state()
    direction = torch.zeros_like(start.q)
    direction[:, 3 * 6 + 2] = 1.0

    def value(factor):
        state, _ = integrator.step(model, start, Control(force=1e-3 * factor * direction))
        state, _ = integrator.step(model, state, Control(force=2e-4 * direction))
        return state.positions[0, -1, 2] + 1e-3 * state.internal.sum()

    factor = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(value(factor), factor)
    # differences reach over a kink of Dahl's slope, to either side of which gradients change by the step of 1e-5
    difference = (value(factor.detach() + 1e-5) - value(factor.detach() - 1e-5)) / 2e-5
    assert float(gradient) == pytest.approx(float(difference), rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("limit", [1.0, 1e3, 1e6, 1e9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_limits_are_springs(limit, dtype):
    """Keep the digits of stress and potential where nothing comes near the limit."""
    law, change = Dahl({"EA": 1.0}, limit).to(dtype), torch.tensor([[1e-3, -1e-3]], dtype=dtype)
    past = Past((torch.zeros_like(change),), (torch.full_like(change, 2e-4),), torch.zeros((), dtype=dtype))
    (stress,), _ = law.derivatives((change,), past)
    spring = change + 2e-4
    near = max(1e-3 / limit, 4 * torch.finfo(dtype).eps)  # of the exponential's second term, or of rounding
    torch.testing.assert_close(stress, spring, rtol=2 * near, atol=0)
    work = 0.5 * change * change + 2e-4 * change
    torch.testing.assert_close(law.density((change,), past), work, rtol=4 * near, atol=0)


def test_gradient_by_internal_variables():
    """Differentiate three steps by the variables at the start, as central differences have it."""
    model, integrator = anisotropic(laws()["dahl"]), ImplicitEuler(0.005, **EXACT)
    generator = torch.Generator().manual_seed(0)
    start = model.initial_state()
    internal = torch.randn(start.internal.shape, dtype=torch.float64, generator=generator)
    weight, direction = torch.randn(2, *internal.shape, dtype=torch.float64, generator=generator)
    velocity = 0.1 * torch.randn(start.q.shape, dtype=torch.float64, generator=generator)

    def value(internal):
        state = start.replace(internal=internal, velocity=velocity)
        for _ in range(3):
            state, _ = integrator.step(model, state)
        return (weight * state.internal).sum() + (1e3 * state.q).sum()

    leaf = internal.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(leaf), leaf)
    ahead, behind = (value(internal + step * direction) for step in (1e-5, -1e-5))
    # rounding leaves 1e-14 of q times weights of 1e3, over 1e-5
    assert float((gradient * direction).sum()) == pytest.approx(float(ahead - behind) / 2e-5, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_robots_alone_and_in_parts(integrator):
    """Give a robot of a batch what it has alone, and in parts of the batch."""
    method = INTEGRATORS[integrator]
    limit = torch.tensor([[1.0], [3.0], [9.0]], dtype=torch.float64)

    def run(limit, chunk):
        model = rod(Dahl(BENDING, limit), loads=[forces.Gravity((0.0, 0.0, -9.81))])
        integrator = copy.copy(method)
        integrator.chunk = chunk
        state = model.initial_state(batch=len(limit))
        for _ in range(4):
            state, info = integrator.step(model, state)
            assert bool(info.converged.all())
        return state

    whole = run(limit, None)
    assert float(whole.internal.abs().max()) > 0.1
    for other in (run(limit, 2), type(whole).joined([run(row[None], None) for row in limit])):
        for a, b in zip(whole.fields(), other.fields(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)  # sums are in another order


def test_recorded_steps_keep_every_bit(monkeypatch):
    """Record steps whose springs are loops, and give the same numbers as without."""
    found = []
    for seen in (3, 10**9):
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", seen)
        model = rod(Dahl(BENDING, 0.5), loads=[forces.Gravity((0.0, 0.0, -9.81))])
        found.append(unroll(model, model.initial_state(), ImplicitEuler(0.01), 8).state)
        assert [kind.recording is not None for kind in model.recordings] == [seen == 3]
    start = model.start_step(model.initial_state(), None, 0.01)
    assert "bend_twist" in model.layout.elastic.loops(model.initial_state().q.t().contiguous(), start.constants)
    for a, b in zip(*(state.fields() for state in found), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("law", ["dahl", "maxwell", "plastic"])
def test_compiled_steps(law):
    """Agree up to rounding where torch compiles the whole step."""
    found = []
    for compile in (False, True):
        model = rod(laws()[law], loads=[forces.Gravity((0.0, 0.0, -9.81))], compile=compile)
        found.append(unroll(model, model.initial_state(), ImplicitEuler(0.01), 8).state)
    for a, b in zip(*(state.fields() for state in found), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)  # products are summed in another order


def test_failed_robots_keep_their_variables():
    """Leave the variables of a robot whose step fails as they were."""
    model = rod(Dahl(BENDING, 0.5), loads=[forces.Gravity((0.0, 0.0, -9.81))])
    state = model.initial_state(batch=2)
    state, _ = ImplicitEuler(0.01).step(model, state)
    lost = state.replace(internal=torch.where(torch.tensor([[True], [False]]), torch.nan, state.internal))
    after, info = ImplicitEuler(0.01).step(model, lost)
    assert info.converged.tolist() == [False, True]
    assert bool(after.internal[0].isnan().all())
    assert bool(torch.isfinite(after.internal[1]).all())


# ---- what users see ----------------------------------------------------------------------------------------------


def test_hanging_rod_keeps_a_part_of_its_bend():
    """Bend a rod by a load and let go: the elastic rod is straight again, that of Dahl is not."""
    load, left = Control(force=None), []
    for law in (None, Dahl(BENDING, 0.1), Maxwell(BENDING, 0.1)):
        model = rod(law)
        state = model.initial_state()
        force = torch.zeros_like(state.q)
        force[:, -model.body.n_angles - 3 * model.body.n_held - 1] = -2e-3
        load = Control(force=force)
        state, _ = Static(4).step(model, state, load)
        state, _ = Static(4).step(model, state)
        left.append(float(state.positions[0, -1, 2]))
    assert abs(left[0]) < 1e-9 and abs(left[2]) < 1e-9
    assert left[1] < -1e-3


def test_energies_and_names():
    """Report what is stored, name variables and constants, and set a constant in a step."""
    model = rod(Maxwell(BENDING, 0.1), loads=[forces.Gravity((0.0, 0.0, -9.81))])
    state, _ = ImplicitEuler(0.01).step(model, model.initial_state())
    variables = model.internal_variables(state)
    assert list(variables) == [f"bend_twist.maxwell.{name}_strain" for name in BENDING]
    term = model.term("bend_twist")
    stored = sum(0.5 * k * z**2 for k, z in zip(BENDING.values(), variables.values(), strict=True))
    assert torch.allclose(model.energies(state)["bend_twist.maxwell"], (term.measure * stored).sum(1))
    names = trainable.constants(model)
    assert {"bend_twist.maxwell.EI1", "bend_twist.maxwell.relaxation_time"} <= names.keys()
    stiff = Control(values={"bend_twist.maxwell.EI1": torch.tensor([[100 * EI]], dtype=torch.float64)})
    other, _ = ImplicitEuler(0.01).step(model, model.initial_state(), stiff)
    assert float(other.positions[0, -1, 2]) > float(state.positions[0, -1, 2])


def test_a_limit_of_zero_is_refused_by_name():
    """Say which constant of a control no law divides by."""
    model = rod(Dahl(BENDING, 0.3))
    none = Control(values={"bend_twist.dahl.EI2_limit": torch.zeros(1, 1, dtype=torch.float64)})
    with pytest.raises(InputError, match="bend_twist.dahl.EI2_limit.*expected more than 0, got 0"):
        ImplicitEuler(0.01).step(model, model.initial_state(), none)


def test_two_laws_of_a_kind():
    """Relax as a Prony series of two terms, each with constants of its own name."""
    model = edge(("fast", Maxwell({"EA": EA}, 0.05)), ("slow", Maxwell({"EA": 0.5 * EA}, 0.5)))
    force = pulled(model, [0.01] * 3, ImplicitEuler(0.02))[-1]
    parts = [k * t / 0.02 * (1 - math.exp(-0.02 / t)) * math.exp(-0.04 / t) for k, t in ((EA, 0.05), (0.5 * EA, 0.5))]
    assert force == pytest.approx(0.01 * (EA + sum(parts)), rel=1e-10)
    assert {"stretch.fast.EA", "stretch.slow.EA"} <= trainable.constants(model).keys()
    with pytest.raises(InputError, match="has a law called 'same' already"):
        edge(("same", Maxwell({"EA": EA}, 0.05)), ("same", Maxwell({"EA": EA}, 0.05)))


def test_modes_are_those_of_what_has_not_relaxed():
    """Vibrate as a rod of both stiffnesses together."""
    both, plain = rod(Maxwell({"EI1": EI, "EI2": EI, "GJ": 0.0}, 0.1)), rod()
    first = [float(modes(model, model.initial_state(), 1).frequency[0, 0]) for model in (both, plain)]
    assert first[0] / first[1] == pytest.approx(math.sqrt(2), rel=1e-9)


def test_files_keep_the_variables(tmp_path):
    """Write a run, read it, and go on from there as if there had been no file."""
    model = rod(Dahl(BENDING, 0.5), loads=[forces.Gravity((0.0, 0.0, -9.81))])
    run = rollout(model, model.initial_state(), ImplicitEuler(0.01), 6)
    run.save(tmp_path / "run.h5")
    state = Trajectory.load(tmp_path / "run.h5").state
    assert float(state.internal.abs().max()) > 0.01
    after = [ImplicitEuler(0.01).step(model, at)[0] for at in (state, run.state)]
    for a, b in zip(*(at.fields() for at in after), strict=True):
        assert torch.equal(a, b)


def test_training_finds_hysteresis():
    """Recover a law's constants from the motion of a tip, by gradients through the steps."""

    def weighing(law):
        return rod(law, loads=[forces.Gravity((0.0, 0.0, -9.81))])

    def tips(model):
        return unroll(model, model.initial_state().detach(), ImplicitEuler(0.02), 12).positions[:, 0, -1]

    truth = tips(weighing(Dahl(BENDING, 1.0))).detach()
    model = weighing(Dahl({name: 0.5 * k for name, k in BENDING.items()}, 1.6))
    stiffness = trainable.scaled(model, ["bend_twist.dahl.EI1"])
    limit = trainable.scaled(model, ["bend_twist.dahl.EI1_limit"])
    both = [*stiffness.parameters(), *limit.parameters()]
    optimizer = torch.optim.LBFGS(both, max_iter=40, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        error = 1e6 * ((tips(model) - truth) ** 2).sum()
        error.backward()
        return error

    optimizer.step(loss)
    law = model.term("bend_twist").inelastic["dahl"]
    # a fit of two numbers to exact data; what is left is the optimiser's tolerance
    assert law.EI1.item() == pytest.approx(BENDING["EI1"], rel=1e-3)
    assert law.EI1_limit.item() == pytest.approx(1.0, rel=1e-3)
