"""What the PI law and its references refuse: numbers when it is made, and runs that it is not made for."""

import re

import pytest
import torch

from tests.control.robots import DT, pi, refused, rod, shape
from torchdismech import ImplicitEuler, InputError, Static, rollout
from torchdismech.constant_curvature import PneumaticArm
from torchdismech.control import PI, Fixed, Strains, Table


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"Kp": -0.1}, "PI: Kp: expected finite numbers of 0 or more, got -0.1"),
        ({"Ki": torch.tensor([1.0, -2.0])}, "PI: Ki: expected finite numbers of 0 or more, got -2"),
        ({"Kp": torch.zeros(2, 2)}, "PI: Kp: expected a number or one for each robot"),
        ({"feed_forward": 0.5}, "feed_forward: expected true or false, or 0 and 1"),
        ({"smoothing": -1}, "smoothing: expected a whole number of passes"),
        ({"every": 0.025}, "every: expected a whole number of steps of dt = 0.01 s, got 0.025 s: take 0.02"),
        ({"every": -0.01}, "every: expected a whole number of steps"),
        ({"delay": 1.5}, "delay: expected a whole number from 0 on, got 1.5"),
        (
            {"noise": 0.1, "seed": 2**63},
            "PI: seed: expected a whole number of less than 64 bits, got 9223372036854775808",
        ),
        ({"dt": 0.0}, "dt: expected a number of seconds above 0"),
        ({"noise": torch.ones(3)}, r"noise: expected a number, or shape \(11,\), got \(3,\)"),
        ({"reference": Fixed(torch.zeros(4).double())}, r"reference: expected 11 strains \(\d+ of .*\), got 4"),
        ({"reference": torch.zeros(11).double()}, r"PI: reference: expected Fixed\(values\), .* got Tensor"),
        ({"every": 1e300}, "every: expected a whole number of steps"),
        ({"noise": -1.0}, "noise: expected finite numbers from 0 on"),
        ({"noise": {"twist": 1.0}}, "PI: noise: no field 'twist' is controlled; there are stretch, kappa1"),
        ({"rate": {"curvature": -1.0}}, "PI: rate: curvature: expected 0 or more"),
        ({"limit": {"kappa2": 1.0}}, "PI: limit: no field 'kappa2' is controlled"),
        ({"least_length": 1.0}, "least_length: expected a share of the rest lengths between 0 and 1"),
        ({"actuators": torch.ones(3, 1)}, r"actuators: expected shape \(11, actuators\), got \(3, 1\)"),
        ({"actuators": torch.ones(11, 2)}, "actuators: expected finite columns of which none is a sum of the others"),
        ({"actuators": {"twist": [1]}}, "PI: actuators: no field 'twist' is controlled; there are stretch, kappa1"),
        ({"actuators": {"stretch": [7]}}, r"PI: actuators: stretch: rod edges: expected indices 0 to 5 .* got \[7\]"),
        ({"Kp": "0.5"}, "PI: Kp: expected numbers, got '0.5'"),
        ({"Kp": None}, "PI: Kp: expected numbers, got None"),
        ({"Ki": 0.3 + 4j}, r"PI: Ki: expected numbers, got \(0.3\+4j\)"),
        ({"Ki": torch.tensor([1.0 + 0j])}, "PI: Ki: expected numbers, got"),
        ({"noise": "a"}, "PI: noise: expected numbers, got 'a'"),
        ({"noise": {"stretch": float("inf")}}, "PI: noise: expected finite numbers by field, got {'stretch': inf}"),
        ({"every": "1"}, "PI: every: expected a number of seconds, got '1'"),
        ({"least_length": "a"}, "PI: least_length: expected a number, got 'a'"),
        ({"robots": [0.2, 1.9]}, r"PI: robots: expected a whole number for each robot, got \[0.2, 1.9\]"),
        ({"robots": "01"}, "PI: robots: expected a whole number for each robot, got '01'"),
        ({"rate": 3.0}, 'PI: rate: expected numbers by field, such as {"stretch": 0.5}, got float'),
        ({"limit": 0.0}, 'PI: limit: expected numbers by field, such as {"stretch": 0.5}, got float'),
        ({"limit": {"stretch": "a"}}, "PI: limit: stretch: expected a number, got 'a'"),
        ({"actuators": "stretch"}, "PI: actuators: expected numbers, got 'stretch'"),
        ({"actuators": {}}, "PI: actuators: expected elements by field, got none; leave it out where all are meant"),
        ({"actuators": {"stretch": [0.7, 3.2]}}, r"PI: actuators: stretch: .* got \[0.7, 3.2\]"),
        ({"actuators": {"stretch": "34"}}, "PI: actuators: stretch: .* got '34'"),
        (
            {"actuators": {"stretch": [4, 4]}},
            r"actuators: stretch: rod edges: expected indices, each once, got \[4, 4\]",
        ),
        ({"actuators": {"curvature": [2], "kappa1": [1, 2]}}, "PI: actuators: expected each element once, but fields"),
    ],
)
def test_refuses_numbers_out_of_their_range(options, message):
    """Name what is wrong when the controller is made."""
    with pytest.raises(InputError, match=message):
        pi(rod(7), **options)


def test_robots_of_another_kind_are_refused():
    """Name the kinds of model, where strains are chosen and where the law is made for an arm."""
    arm, strains = PneumaticArm([0.15], [0.5], 0.04, 265.0), pi(rod(7)).strains
    with pytest.raises(InputError, match=r"control.Strains is for rods and shells \(Model\), got PneumaticArm"):
        Strains(arm)
    with pytest.raises(InputError, match=r"control.PI is for rods and shells \(Model\), got PneumaticArm"):
        PI(arm, strains, Fixed(torch.zeros(11)), DT)
    with pytest.raises(InputError, match=r"PI: strains: expected control.Strains\(model, fields\), got list"):
        PI(rod(7), ["stretch"], Fixed(torch.zeros(11)), DT)


def test_references_and_memories_of_other_kinds_are_refused():
    """Take lists of numbers as references; refuse text there, and what is no memory."""
    model = rod(7)
    rollout(model, model.initial_state(), ImplicitEuler(DT), 1, controller=pi(model, reference=Fixed([0.0] * 11)))
    with pytest.raises(InputError, match="reference: times: expected numbers, got 'a'"):
        Table("a", torch.zeros(1, 11))
    with pytest.raises(InputError, match="target: positions: expected numbers, got 'a'"):
        pi(model).strains.of_shape(model, "a")
    with pytest.raises(InputError, match="memory of PI: expected tensors by name, .* got list"):
        rollout(model, model.initial_state(), ImplicitEuler(DT), 1, controller=pi(model), memory=[])


def test_refuses_runs_that_it_is_not_made_for():
    """Refuse at the start of a run: other steps, statics, other robots, other batches, references that do not fit."""
    model, other = rod(7), rod(9)
    values, double = shape(model).values, torch.float64
    assert "is made for steps of dt = 0.02 s, and the integrator takes 0.01 s" in refused(model, pi(model, dt=0.02))
    assert "PI: a controller with memory acts over time, and Static has none" in refused(model, pi(model), Static())
    assert "strains: are those of a robot with 6 rod edges, this one has 8" in refused(other, pi(model))
    gains = pi(model, Kp=torch.tensor([0.1, 0.2]))
    assert "PI: Kp: expected a number, or one for each of 3 robots, got 2" in refused(model, gains, batch=3)
    robots = pi(model, robots=[0, 1])
    assert "robots: expected the numbers of 3 robots, got (2,)" in refused(model, robots, batch=3)
    exchanged = pi(model)
    exchanged.reference = Fixed(values[1:])
    short = refused(model, exchanged)
    assert short == "reference: expected 11 strains (6 of stretch, 5 of kappa1), got 10"
    missing = refused(model, pi(model, reference=Fixed(torch.where(values == values[2], torch.nan, values))))
    assert missing == "reference: holds numbers that are not finite"
    four = refused(model, pi(model, reference=Fixed(values.expand(4, -1))), batch=3)
    assert four == "reference: expected strains of 3 robots, got those of 4"
    single = refused(model, pi(model, reference=Fixed(values.float())))
    assert single.startswith("reference: expected torch.float64 on cpu, got torch.float32")
    table = torch.stack([values, values])
    until = Table(torch.tensor([0.0, 0.05], dtype=double), table)
    late = refused(model, pi(model, reference=until))
    assert late.startswith("reference: is known from 0 to 0.05 s and the run goes from 0 to 0.1 s: expected times that")
    rollout(model, model.initial_state(), ImplicitEuler(DT), 5, controller=pi(model, reference=until))
    held = Table(torch.tensor([0.0, 0.05], dtype=double), table, beyond="hold")
    rollout(model, model.initial_state(), ImplicitEuler(DT), 6, controller=pi(model, reference=held))


@pytest.mark.parametrize(
    ("times", "values", "beyond", "message"),
    [
        ([0.0, 0.0], torch.zeros(2, 3), "refuse", "expected finite times that grow"),
        ([0.0, torch.nan], torch.zeros(2, 3), "refuse", "expected finite times that grow"),
        ([0.0, 1.0], torch.zeros(3, 3), "refuse", re.escape("got (2,) and (3, 3)")),
        ([0.0, 1.0], torch.zeros(2, 3), "stay", "beyond: expected one of 'refuse', 'hold', got 'stay'"),
    ],
)
def test_refuses_tables_that_are_none(times, values, beyond, message):
    """Refuse times that do not grow, values of other times, and an unknown end."""
    with pytest.raises(InputError, match=message):
        Table(torch.tensor(times), values, beyond)
