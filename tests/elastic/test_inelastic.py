"""Materials that remember: laws against closed forms, in steps of all integrators, in files, with gradients."""

import copy
import math

import pytest
import torch

from tests.gradients.cases import EXACT, HELIX, GradientCase, SmallForce
from tests.integrate.test_newton_matrix import balance_far_from_the_start, check_matrix
from tests.rods import rod_through
from torchdismech import (
    BDF2,
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    Rectangle,
    RobotBuilder,
    Static,
    Trajectory,
    forces,
    modes,
    rollout,
    straight,
    trainable,
    unroll,
)
from torchdismech.elastic import Dahl, Inelastic, LinearElastic, Maxwell, Past, Plastic
from torchdismech.elastic.inelastic import FOREVER
from torchdismech.integrate import recording
from torchdismech.testing import check_inelastic

LENGTH, RADIUS, YOUNGS = 0.2, 5e-3, 1e6
EA, EI = YOUNGS * math.pi * RADIUS**2, YOUNGS * math.pi * RADIUS**4 / 4
BENDING = {"EI1": EI, "EI2": 2 * EI, "GJ": 0.5 * EI}
INTEGRATORS = {
    "euler": ImplicitEuler(0.01),
    "midpoint": ImplicitMidpoint(0.01),
    "newmark": Newmark(0.01),
    "bdf2": BDF2(0.01),
    "static": Static(),
}


class Slider(Inelastic):
    """A law that a user writes: a spring of one strain behind a dry friction that gives way at `limit` strain."""

    variables = ("z",)

    def __init__(self, stiffness: float = 2.0, limit: float = 0.5, strains: int = 1):
        super().__init__()
        self.stiffness, self.limit, self.strains = stiffness, limit, strains

    def density(self, strain, past):
        """Return the potential of the spring's force, a Huber function of where the spring would be."""
        z = past.internal[0] + strain[0] - past.strain[0]
        size = z.abs()
        slides = self.limit * (size - 0.5 * self.limit)
        return self.stiffness * torch.where(size < self.limit, 0.5 * z * z, slides)

    def updated(self, strain, past):
        """Return the strain of the spring."""
        return (torch.clamp(past.internal[0] + strain[0] - past.strain[0], -self.limit, self.limit),)

    def stored(self, internal):
        """Return its energy."""
        return 0.5 * self.stiffness * internal[0] ** 2


def rod(law=None, term="bend_twist", edges=6, held="end", loads=(), **options):
    """Return a rod along x with a law."""
    points = straight((0, 0, 0), (LENGTH, 0, 0), edges + 1)
    builder = rod_through(points, Circle(RADIUS), Material(YOUNGS, 1000.0), loads, held)
    if law is not None:
        builder.add_inelastic(term, law)
    return builder.finalize(**{"compile": False, **options})


def edge(*laws):
    """Return a rod of one edge whose ends are held, with laws of its stretch by name; only its twist is free."""
    builder = rod_through(straight((0, 0, 0), (LENGTH, 0, 0), 2), Circle(RADIUS), Material(YOUNGS, 1000.0), held="not")
    for node in (0, 1):
        builder.clamp(nodes=[node])
    for name, law in laws:
        builder.add_inelastic("stretch", law, name)
    return builder.finalize(compile=False)


def pulled(model, strains, integrator):
    """Return the force that stretches an edge to each strain in turn."""
    state, found = model.initial_state(), []
    for strain in strains:
        target = model.initial_state().q.clone()
        target[:, 3] = LENGTH * (1 + strain)
        before = state
        state, info = integrator.step(model, state, Control(clamped_q=target))
        assert bool(info.converged.all())
        found.append(-float(integrator.reactions(model, before, state, Control(clamped_q=target))[0, 0, 0]))
    return found


# ---- laws --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "strains"),
    [
        (Dahl({"EI1": 1.0, "EI2": 2.0, "GJ": 0.0}, 0.7), 3),
        (Dahl({"EA": torch.tensor([[1.0], [2.0], [3.0]])}, {"EA": 2.0}), 1),
        (Maxwell({"EI1": 1.0, "EI2": 2.0, "GJ": 0.5}, 0.3), 3),
        (Maxwell({"EA": 3.0}, 1e4), 1),  # where the formula's series is taken
        (Plastic({"EI1": 1.0, "EI2": 2.0, "GJ": 0.0}, 0.7, together=("EI1", "EI2")), 3),
        (Plastic({"EI1": 1.0, "EI2": 2.0, "GJ": 0.5}, {"EI1": 0.7, "EI2": 0.5, "GJ": 9.0}), 3),
        (Slider(), 1),
    ],
    ids=["dahl", "dahl of each robot", "maxwell", "slow maxwell", "plastic together", "plastic", "of a user"],
)
def test_contract(law, strains):
    """Pass the checks of derivatives, of internal variables and of rest."""
    check_inelastic(law, strains, size=1.0).raise_if_failed()


def test_contract_finds_what_is_wrong():
    """Tell a stress that jumps between steps, and variables that are too few."""

    class Forgetful(Slider):
        def updated(self, strain, past):
            return (0.9 * super().updated(strain, past)[0],)

    class Mute(Slider):
        def updated(self, strain, past):
            return ()

    assert "the stress does not jump" in str(check_inelastic(Forgetful(limit=10.0), 1))
    assert not check_inelastic(Forgetful(limit=10.0), 1).ok
    assert not check_inelastic(Mute(), 1).ok


@pytest.mark.filterwarnings("ignore:Static")  # the twist of a single edge is free
def test_loop_of_dahl():
    """Follow Dahl's curve up, down and up again, in few steps as in many, and lose what the loop encloses."""
    stiffness, limit = 0.5 * EA, 0.01
    model = edge(("dahl", Dahl({"EA": stiffness}, limit)))

    def curve(strain, turned_at, z, way):
        return way * limit + (z - way * limit) * math.exp(-abs(strain - turned_at) / limit)

    top, bottom = 0.03, -0.02
    z_top = curve(top, 0.0, 0.0, 1)
    z_bottom = curve(bottom, top, z_top, -1)
    expected = [EA * top + stiffness * z_top, EA * bottom + stiffness * z_bottom]
    for parts in (1, 7):
        way = [top * (k + 1) / parts for k in range(parts)]
        back = [top + (bottom - top) * (k + 1) / parts for k in range(parts)]
        found = pulled(model, way + back, Static())
        # the potential is exact along a way without return, so the number of steps does not count
        assert [found[parts - 1], found[-1]] == pytest.approx(expected, rel=1e-10)


@pytest.mark.filterwarnings("ignore:Static")  # the twist of a single edge is free
def test_plastic_edge_hardens_and_yields_back():
    """Follow the lines of a material that hardens kinematically, and agree with the slider that users write."""
    stiffness, limit = 0.5 * EA, 0.01
    strains = [0.005, 0.03, 0.02, -0.02, -0.005]
    z = [0.005, 0.01, 0.0, -0.01, 0.005]  # of the spring that yields at +-0.01
    found = pulled(edge(("plastic", Plastic({"EA": stiffness}, limit))), strains, Static())
    assert found == pytest.approx([EA * e + stiffness * own for e, own in zip(strains, z, strict=True)], rel=1e-9)
    assert found == pytest.approx(pulled(edge(("slider", Slider(stiffness, limit))), strains, Static()), rel=1e-9)


def test_round_rods_yield_alike_to_all_sides():
    """Resist a round rod's bending by the same moment to all sides; Dahl's law takes up to 1.41 times as much."""
    angles = torch.linspace(0, math.pi / 2, 7, dtype=torch.float64)
    strain = (2.0 * angles.cos()[None], 2.0 * angles.sin()[None], torch.zeros(1, 7, dtype=torch.float64))
    zero, time = (torch.zeros(1, 7, dtype=torch.float64),) * 3, torch.zeros((), dtype=torch.float64)
    sizes = {}
    for law in (Plastic(BENDING | {"EI2": EI}, 0.1, together=("EI1", "EI2")), Dahl(BENDING | {"EI2": EI}, 0.1)):
        first, second, _ = law.slopes(strain, Past(zero, zero, time))
        sizes[type(law)] = torch.hypot(first, second) / (0.1 * EI)
    torch.testing.assert_close(sizes[Plastic], torch.ones(1, 7, dtype=torch.float64), rtol=1e-12, atol=0)
    # at 20 times the limit nothing is left of Dahl's approach to it: e^-14 at 45 degrees
    assert float(sizes[Dahl].max()) == pytest.approx(math.sqrt(2), rel=1e-5)


@pytest.mark.filterwarnings("ignore:Static")  # the twist of a single edge is free
def test_maxwell_relaxes():
    """Hold a stretch: the reaction decays with the relaxation time, in steps of any length; at rest it is gone."""
    time, strain = 0.05, 0.02
    model = edge(("maxwell", Maxwell({"EA": EA}, time)))
    for dt in (0.005, 0.05):
        integrator = ImplicitEuler(dt)
        found = pulled(model, [strain] * 5, integrator)
        ramp = (1 - math.exp(-dt / time)) * time / dt  # of the spring's strain, while the end moves
        for k, force in enumerate(found):
            expected = EA * strain * (1 + ramp * math.exp(-k * dt / time))
            assert force == pytest.approx(expected, rel=1e-10)
    assert pulled(model, [strain], Static())[0] == pytest.approx(EA * strain, rel=1e-10)


def oscillator(dt, integrator):
    """Return where a mass on a rod of one edge that relaxes is after .2 s, its velocity and the law's variable."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (LENGTH, 0, 0), 2), Circle(RADIUS), Material(YOUNGS, 1000.0))
    builder.clamp(nodes=[0])
    builder.clamp(nodes=[1], axes="yz")
    builder.add_mass([1], 1.0)
    builder.add_inelastic("stretch", Maxwell({"EA": EA}, 0.03))
    model = builder.finalize(compile=False)
    start = model.initial_state()
    q = start.q.clone()
    q[:, 3] += 1e-6 * LENGTH
    method = integrator(dt, force_tolerance=1e-16, relative_tolerance=0.0)
    state = unroll(model, model.initial_state(q=q), method, round(0.2 / dt)).state
    mass = float(model.body.mass[..., 3].reshape(-1)[0])
    rows = [[0, 1, 0], [-EA / LENGTH / mass, 0, -EA / mass], [0, 1 / LENGTH, -1 / 0.03]]  # of x, its velocity, and z
    rate, begin = torch.tensor(rows, dtype=torch.float64), torch.tensor([1e-6 * LENGTH, 0, 0], dtype=torch.float64)
    exact = torch.linalg.matrix_exp(0.2 * rate) @ begin
    return abs(float(state.q[0, 3] - LENGTH - exact[0])) / (1e-6 * LENGTH)


@pytest.mark.parametrize(("integrator", "order"), [(ImplicitEuler, 1), (ImplicitMidpoint, 2), (BDF2, 2), (Newmark, 2)])
def test_order_of_an_oscillator_that_relaxes(integrator, order):
    """Converge to the solution of the linear equations, by the matrix exponential, with the integrator's order."""
    errors = [oscillator(dt, integrator) for dt in (2e-3, 1e-3)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.15)


# ---- steps -------------------------------------------------------------------------------------------------------


def anisotropic(law, learned=False):
    """Return two robots of unlike stiffness, and of unlike law."""
    builder = RobotBuilder()
    youngs = torch.tensor([[1e6], [2e6]], dtype=torch.float64)
    builder.add_rod(HELIX, Rectangle(width=4e-3, height=3e-3), Material(youngs, 1000.0, 0.4, relaxation_time=2e-3))
    builder.clamp(nodes=[0, 1])
    builder.add_inelastic("bend_twist", law)
    builder.add_inelastic("stretch", Maxwell({"EA": 3.0}, torch.tensor([[0.01], [0.02]], dtype=torch.float64)))
    if learned:
        builder.add_force(SmallForce())
    return builder.finalize(compile=False)


def laws():
    """Return one law of each kind, with a limit or time for each robot."""
    scale = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    return {
        "dahl": Dahl({"EI1": 2e-5, "EI2": 1e-5, "GJ": 5e-6}, 3.0 * scale),
        "maxwell": Maxwell({"EI1": 2e-5, "EI2": 1e-5, "GJ": 5e-6}, 0.01 * scale),
        "plastic": Plastic({"EI1": 2e-5, "EI2": 1e-5, "GJ": 5e-6}, 3.0 * scale, together=("EI1", "EI2")),
        "of a user": Slider(2e-5, 3.0, 3),
    }


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
        monkeypatch.setattr(recording, "SEEN", seen)
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


# ---- refusals ----------------------------------------------------------------------------------------------------


def test_refusals():
    """Name what is wrong with constants, with states, and with laws of a user's own."""
    with pytest.raises(InputError, match="limit of EA: expected more than 0"):
        Dahl({"EA": 1.0}, 0.0)
    with pytest.raises(InputError, match="limit: expected EA, got GJ"):
        Dahl({"EA": 1.0}, {"GJ": 1.0})
    with pytest.raises(InputError, match="together: expected some of EA, got 'GJ'"):
        Plastic({"EA": 1.0}, 1.0, together=("GJ",))
    with pytest.raises(InputError, match="EI1: expected 0 or more, got -1"):
        Maxwell({"EI1": -1.0}, 1.0)
    with pytest.raises(InputError, match="relaxation_time: expected more than 0"):
        Maxwell({"EI1": 1.0}, 0.0)
    with pytest.raises(InputError, match="each of the term's 3 strains .kappa1, kappa2, tau., got EI1"):
        rod(Dahl({"EI1": 1.0}, 1.0))
    with pytest.raises(InputError, match="expected stiffnesses in the order EI1, EI2, GJ, got GJ, EI1, EI2"):
        rod(Dahl({"GJ": 1.0, "EI1": 1.0, "EI2": 1.0}, 1.0))
    with pytest.raises(InputError, match="'density' cannot be the name of a stiffness"):
        Dahl({"density": 1.0}, 1.0)
    with pytest.raises(InputError, match=r"expected a law .elastic.Inelastic., got LinearElastic"):
        RobotBuilder().add_inelastic("stretch", LinearElastic({"EA": torch.tensor(1.0)}))
    with pytest.raises(InputError, match="'keys' cannot be the name of a law"):
        RobotBuilder().add_inelastic("stretch", Dahl({"EA": 1.0}, 1.0), "keys")
    with pytest.raises(InputError, match="no term 'hinge'"):
        rod(Dahl({"hinge": 1.0}, 1.0), term="hinge")
    model = rod(Dahl(BENDING, 1.0))
    bare = model.initial_state().replace(internal=None)
    with pytest.raises(InputError, match=r"State.internal: this model's materials expect \(1, 18\), got None"):
        ImplicitEuler(0.01).step(model, bare)
    with pytest.raises(InputError, match=r"State.internal: this model's materials expect None, got \(1, 18\)"):
        ImplicitEuler(0.01).step(rod(), model.initial_state())


def test_own_laws_are_held_to_what_they_claim():
    """Refuse, when the robot is built, too few variables and derivatives that are not those of the density."""

    class Mute(Slider):
        def updated(self, strain, past):
            return ()

    class Wrong(Slider):
        closed_form = True

        def derivatives(self, strain, past):
            first, second = super().derivatives(strain, past)
            return [1.1 * s for s in first], second

    with pytest.raises(InputError, match="Mute .*expected updated.. to give 1 internal variables"):
        rod(Mute(strains=1), "stretch")
    with pytest.raises(InputError, match="Wrong .*first derivatives are not those of density"):
        rod(Wrong(strains=1), "stretch")


def test_equilibria_are_of_what_has_relaxed():
    """Leave nothing of the slowest law in an equilibrium, in single precision too, with finite gradients."""
    law = Maxwell({"EA": 1.0}, 1e6).float()
    law.relaxation_time.requires_grad_()
    one = torch.ones(1, 1)
    (z,) = law.updated((2 * one,), Past((one,), (one,), torch.tensor(FOREVER)))
    z.sum().backward()
    assert float(z.detach()) < 1e-12
    assert float(law.relaxation_time.grad) == pytest.approx(0.0, abs=1e-12)
