"""Laws of materials that remember, against closed forms and what they claim."""

import math
import re

import pytest
import torch

from tests.elastic.inelastic_robots import BENDING, EA, EI, LENGTH, RADIUS, YOUNGS, Slider, edge, pulled, rod
from torchdismech import (
    BDF2,
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    straight,
    unroll,
)
from torchdismech.elastic import Dahl, LinearElastic, Maxwell, Past, Plastic
from torchdismech.elastic.inelastic import FOREVER
from torchdismech.testing import check_inelastic


@pytest.mark.parametrize(
    ("law", "strains"),
    [
        (Dahl({"EI1": 1.0, "EI2": 2.0, "GJ": 0.0}, 0.7), 3),
        (Dahl({"EA": torch.tensor([[1.0], [2.0], [3.0]])}, {"EA": 2.0}), 1),
        (Maxwell({"EI1": 1.0, "EI2": 2.0, "GJ": 0.5}, 0.3), 3),
        (Maxwell({"EA": 3.0}, 1e4), 1),  # where the formula's series is taken
        (Plastic({"EI1": 1.0, "EI2": 2.0, "GJ": 0.0}, 0.7, together=("EI1", "EI2")), 3),
        (Plastic({"EI1": 0.0, "EI2": 2.0, "GJ": 0.5}, 0.7, together=("EI1", "EI2")), 3),  # bending yields at once
        (Plastic({"EI1": 1.0, "EI2": 2.0, "GJ": 0.5}, {"EI1": 0.7, "EI2": 0.5, "GJ": 9.0}), 3),
        (Slider(), 1),
    ],
    ids=[
        "dahl",
        "dahl of each robot",
        "maxwell",
        "slow maxwell",
        "plastic together",
        "plastic at once",
        "plastic",
        "of a user",
    ],
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


@pytest.mark.parametrize(
    "given", [{"size": "a"}, {"size": 0}, {"elapsed": "a"}, {"elapsed": 0.0}, {"robots": "3"}, {"robots": 2.5}]
)
def test_contract_refuses_what_are_no_numbers(given):
    """Name the argument, and what came."""
    ((name, value),) = given.items()
    with pytest.raises(InputError, match=f"check_inelastic: {name}: expected .* got {value!r}"):
        check_inelastic(Slider(), 1, **given)


def test_contract_says_how_many_robots_to_try():
    """Name a tensor of two robots and the cure, pass with as many, and refuse what is no law."""
    law = Dahl({"EA": torch.tensor([[1.0], [2.0]])}, {"EA": 2.0})
    with pytest.raises(InputError, match="Dahl.EA is given for 2 robots, expected 3, .*; give robots=2"):
        check_inelastic(law, 1)
    check_inelastic(law, 1, robots=2).raise_if_failed()
    with pytest.raises(InputError, match=r"check_inelastic.law, strains.: law: expected an Inelastic, got int"):
        check_inelastic(1, law)


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
    # terms of the next order: .14 for implicit Euler, .002 for the others
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.15 if order == 1 else 0.01)


@pytest.mark.parametrize("given", [1.0, [1.0, 2.0], torch.tensor(1.0), {}, {1: 1.0}, None, "EA"])
@pytest.mark.parametrize("law", [Dahl, LinearElastic, Maxwell, Plastic])
def test_stiffnesses_without_names(law, given):
    """Say that stiffnesses go by name, and what came."""
    said = (
        rf"^{law.__name__}: stiffness: expected one of each strain by name, such as .*, got {re.escape(repr(given))}$"
    )
    with pytest.raises(InputError, match=said):
        law(given, 0.5)


def test_what_is_no_number():
    """Name it, and what came."""
    for make, said in (
        (lambda: Dahl({"EA": "much"}, 0.5), "Dahl.EA: expected numbers, got 'much'"),
        (lambda: Dahl({"EA": 1.0}, "little"), "Dahl.EA_limit: expected numbers, got 'little'"),
        (lambda: Maxwell({"EA": 1.0}, None), "Maxwell.relaxation_time: expected numbers, got None"),
        (lambda: Plastic({"EA": 1.0}, 0.5, "EA"), "Plastic: together: expected a list of names, got the text 'EA'"),
    ):
        with pytest.raises(InputError, match=f"^{said}$"):
            make()


def test_refusals():
    """Name what is wrong with constants, with states, and with laws of a user's own."""
    with pytest.raises(InputError, match="limit of EA: expected more than 0"):
        Dahl({"EA": 1.0}, 0.0)
    with pytest.raises(InputError, match="limit: expected EA, got GJ"):
        Dahl({"EA": 1.0}, {"GJ": 1.0})
    with pytest.raises(InputError, match="together: expected some of EA, got 'GJ'"):
        Plastic({"EA": 1.0}, 1.0, together=("GJ",))
    with pytest.raises(InputError, match="together: expected each name once, got EA, EA"):
        Plastic({"EA": 1.0}, 1.0, together=("EA", "EA"))
    with pytest.raises(InputError, match="Maxwell.EI1: expected 0 or more, and finite, got -1$"):
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
    with pytest.raises(InputError, match="'keys' cannot be the name of a part"):
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
