"""The contract checks of stencils and energies: each mistake is found, by the check that is meant for it."""

import numpy as np
import pytest
import torch

from tests.testing.test_testing import bent_robot
from torchdismech import InputError
from torchdismech.elastic import Energy, LinearElastic, Stencil, batch_last
from torchdismech.testing import check_energy, check_stencil


class Squared(Stencil):
    """Squared length of edges, with closed forms."""

    closed_form = True

    def __init__(self, last=4):
        node, one = np.array([2, 3, last]), np.ones(3)
        super().__init__([[(3 * node + k, one), (3 * (node - 1) + k, -one)] for k in range(3)], ["squared"])

    def strain(self, local, *constants):
        """Return the squared length."""
        return (sum(v * v for v in local),)

    def derivatives(self, local, *constants):
        """Return it with its derivatives."""
        zero = torch.zeros_like(local[0])
        matrix = [(2 if i == j else 0) + zero for i, j in self.pairs]
        return self.strain(local), [[2 * v for v in local]], lambda weight: [weight * m for m in matrix]


class ByAutograd(Squared):
    """The same without closed forms."""

    closed_form = False
    derivatives = Stencil.derivatives


def changed_stencil(base, **methods):
    """Return a stencil with some methods put in place of its own."""
    return type("Changed", (base,), methods)()


def derivatives_with(change):
    """Return a `derivatives` whose result is changed."""
    return lambda self, local, *constants: change(*Squared.derivatives(self, local, *constants))


def strain_with(change):
    """Return a `strain` that is changed."""
    return lambda self, local, *constants: (change(Squared.strain(self, local)[0]),)


class Counter:
    """Gives another number each time."""

    def __init__(self):
        self.calls = 0

    def __call__(self, value):
        """Return the value, more of it each time."""
        self.calls += 1
        return value * (1 + 1e-3 * self.calls)


WRONG_STENCILS = {
    "sign": (
        lambda: changed_stencil(Squared, derivatives=derivatives_with(lambda s, f, g: (s, [[-x for x in f[0]]], g))),
        "first derivatives",
    ),
    "a derivative missing": (
        lambda: changed_stencil(Squared, derivatives=derivatives_with(lambda s, f, g: (s, [f[0][:2]], g))),
        "first derivatives: 3 of shape (S, B)",
    ),
    "a second derivative missing": (
        lambda: changed_stencil(Squared, derivatives=derivatives_with(lambda s, f, g: (s, f, lambda w: g(w)[:-1]))),
        "second derivatives: 6 of shape (S, B)",
    ),
    "second derivatives that broadcast": (
        lambda: changed_stencil(
            Squared, derivatives=derivatives_with(lambda s, f, g: (s, f, lambda w: [torch.zeros(())] * 6))
        ),
        "second derivatives: 6 of shape (S, B)",
    ),
    "no second derivatives": (
        lambda: changed_stencil(
            Squared, derivatives=derivatives_with(lambda s, f, g: (s, f, lambda w: [0 * x for x in g(w)]))
        ),
        "second derivatives",
    ),
    "another strain in derivatives": (
        lambda: changed_stencil(Squared, derivatives=derivatives_with(lambda s, f, g: ((2 * s[0],), f, g))),
        "derivatives() has the strains",
    ),
    "no tuple": (
        lambda: changed_stencil(ByAutograd, strain=lambda self, local, *c: sum(v * v for v in local)),
        "strains: 1 of shape (S, B)",
    ),
    "summed": (
        lambda: changed_stencil(ByAutograd, strain=strain_with(lambda s: s.sum(0))),
        "strains: 1 of shape (S, B)",
    ),
    "not finite": (lambda: changed_stencil(ByAutograd, strain=strain_with(lambda s: torch.sqrt(-s))), "finite"),
    "not deterministic": (
        lambda: changed_stencil(ByAutograd, strain=strain_with(Counter())),
        "the same twice",
    ),
    "others' strains": (
        lambda: changed_stencil(ByAutograd, strain=strain_with(lambda s: s * s.mean(0))),
        "no stencil changes another",
    ),
    "others' robots": (
        lambda: changed_stencil(ByAutograd, strain=strain_with(lambda s: s + s.mean(1, keepdim=True))),
        "each robot as if alone",
    ),
    "cut off from autograd": (
        lambda: changed_stencil(ByAutograd, strain=strain_with(lambda s: s.detach())),
        "first derivatives",
    ),
    "nodes that are not there": (lambda: Squared(last=400), "dofs are 0 to 30"),
}


def failed(report) -> set[str]:
    """Return the names of the checks that do not hold."""
    return {check.name for check in report.checks if not check.ok}


def test_right_ones_pass():
    """Pass closed forms and autograd, and a state that is straight and at rest, whose zeros are rounding."""
    model, state = bent_robot()
    for stencil in (Squared(), ByAutograd()):
        check_stencil(stencil, state).raise_if_failed()
        check_stencil(stencil, model.initial_state(batch=2)).raise_if_failed()
    check_energy(Quartic(), strains=2, size=3.0).raise_if_failed()


@pytest.mark.parametrize("name", WRONG_STENCILS)
def test_a_wrong_stencil_is_named(name):
    """Fail the check that says what is wrong."""
    make, check = WRONG_STENCILS[name]
    _, state = bent_robot()
    assert check in failed(check_stencil(make(), state))


@pytest.mark.parametrize("batch", [1, 2])
def test_robots_that_are_alike_do_not_hide_a_strain_between_them(batch):
    """Fail strains by the mean over robots at a state of robots that are alike, and at one of a single robot."""
    model, _ = bent_robot()
    between = changed_stencil(ByAutograd, strain=strain_with(lambda s: s + s.mean(1, keepdim=True)))
    assert "each robot as if alone" in failed(check_stencil(between, model.initial_state(batch=batch)))


class Rested(ByAutograd):
    """Squared length of edges less one of each robot."""

    per_robot = ("rest",)

    def __init__(self, rest):
        super().__init__()
        self.register_buffer("rest", rest)

    def constants(self, state, control):
        """Return the squared lengths at rest (1, B)."""
        return (batch_last(self.rest),)

    def strain(self, local, rest):
        """Return the squared length less that at rest."""
        return (sum(v * v for v in local) - rest,)


def test_stencils_with_constants_of_each_robot_are_looked_at_alone():
    """Pass lengths of two robots, and say what state they need where there are others."""
    model, state = bent_robot()
    stencil = Rested(torch.tensor([[1e-3], [2e-3]], dtype=torch.float64))
    check_stencil(stencil, state).raise_if_failed()
    with pytest.raises(InputError, match=r"Rested.rest is given for 2 robots, expected 3, .*initial_state.batch=2."):
        check_stencil(stencil, model.initial_state(batch=3))


def test_energies_with_numbers_of_each_robot_say_how_many_to_try():
    """Name the tensor and the cure, and pass with as many robots."""
    energy = LinearElastic({"a": torch.tensor([[2.0], [3.0]], dtype=torch.float64)})
    with pytest.raises(InputError, match=r"LinearElastic.a is given for 2 robots, expected 3, .*; give robots=2"):
        check_energy(energy, strains=1)
    check_energy(energy, strains=1, robots=2).raise_if_failed()


class Quartic(Energy):
    """psi = a^2 / 2 + a b + b^4, with closed forms."""

    closed_form = True

    def density(self, strain):
        """Return psi."""
        a, b = strain
        return 0.5 * a**2 + a * b + b**4

    def derivatives(self, strain):
        """Return its derivatives; constants broadcast."""
        a, b = strain
        one = torch.ones((), dtype=a.dtype)
        return [a + b, a + 4 * b**3], [[one, one], [one, 12 * b**2]]


def changed_energy(closed_form=True, **methods):
    """Return an energy with some methods put in place of its own."""
    if not closed_form:
        methods["derivatives"] = Energy.derivatives
    return type("Changed", (Quartic,), {"closed_form": closed_form, **methods})()


def energy_with(change):
    """Return an energy by autograd whose density is changed."""
    return changed_energy(False, density=lambda self, strain: change(Quartic.density(self, strain), strain))


WRONG_ENERGIES = {
    "sign": (
        lambda: changed_energy(
            derivatives=lambda self, s: ([-x for x in Quartic.derivatives(self, s)[0]], Quartic.derivatives(self, s)[1])
        ),
        "first derivatives",
    ),
    "a derivative missing": (
        lambda: changed_energy(
            derivatives=lambda self, s: (Quartic.derivatives(self, s)[0][:1], Quartic.derivatives(self, s)[1])
        ),
        "first derivatives: 2 of shape (S, B)",
    ),
    "a row missing": (
        lambda: changed_energy(
            derivatives=lambda self, s: (Quartic.derivatives(self, s)[0], Quartic.derivatives(self, s)[1][:1])
        ),
        "second derivatives: 2 x 2 of shape (S, B)",
    ),
    "no second derivatives": (
        lambda: changed_energy(derivatives=lambda self, s: (Quartic.derivatives(self, s)[0], [[None] * 2] * 2)),
        "second derivatives",
    ),
    "slopes of another energy": (
        lambda: changed_energy(slopes=lambda self, s: [2 * x for x in Quartic.derivatives(self, s)[0]]),
        "slopes() has the first derivatives",
    ),
    "parts of another energy": (
        lambda: changed_energy(parts=lambda self, s: {"half": 0.5 * s[0] ** 2}),
        "parts add up",
    ),
    "summed": (lambda: energy_with(lambda psi, strain: psi.sum()), "density: 1 of shape (S, B)"),
    "not deterministic": (lambda: energy_with(lambda psi, strain: COUNTER(psi)), "the same twice"),
    "others' strains": (lambda: energy_with(lambda psi, strain: psi + strain[0].mean()), "no stencil changes another"),
    "others' robots": (
        lambda: energy_with(lambda psi, strain: psi * strain[0].mean(1, keepdim=True)),
        "no robot changes another",
    ),
    "cut off from autograd": (lambda: energy_with(lambda psi, strain: psi.detach()), "first derivatives"),
    "not finite": (lambda: energy_with(lambda psi, strain: psi + torch.log(strain[0])), "finite"),
}
COUNTER = Counter()


@pytest.mark.parametrize("name", WRONG_ENERGIES)
def test_a_wrong_energy_is_named(name):
    """Fail the check that says what is wrong."""
    make, check = WRONG_ENERGIES[name]
    assert check in failed(check_energy(make(), strains=2))
