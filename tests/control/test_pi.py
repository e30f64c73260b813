"""The PI law: what it computes, its limits, what it sees, and what it refuses."""

import re

import numpy as np
import pytest
import torch

from tests.control.robots import folded_strip, rod, strip, wave
from torchdismech import Control, ImplicitEuler, InputError, Static, rollout, trainable, unroll
from torchdismech.control import PI, Fixed, Strains, Table
from torchdismech.control.noise import normal
from torchdismech.runs.rollout import frames

DT = 0.01


def shape(model, height: float = 0.01) -> Fixed:
    """Return the wave as a reference."""
    return Fixed(Strains(model).of_shape(model, wave(model.body.n_nodes, height)))


def pi(model, **options) -> PI:
    """Return a controller of the wave."""
    given = options.pop("reference", None)
    reference = shape(model) if given is None else given
    return PI(model, Strains(model), reference, options.pop("dt", DT), **options)


def by_hand(model, controller, steps):
    """Return the natural strains (steps, B, m) that the law's formulas give along a run, and the last integral."""
    strains, state = controller.strains, model.initial_state(len(controller.Kp))
    integral, found = 0.0, []
    for frame in frames(model, state, ImplicitEuler(DT), steps, controller=controller):
        if frame.step:
            torch.testing.assert_close(frame.memory["action"], found[-1], rtol=1e-13, atol=1e-13)
        time = frame.state.time
        error = controller.reference(time) - strains.measured(frame.state, model)
        integral = integral + DT * error
        ahead = controller.feed_forward * controller.reference(time + DT)
        found.append(ahead + controller.Kp * error + controller.Ki * integral)
    return torch.stack(found[:-1])


def test_law_is_that_of_the_formulas():
    """Follow a target that moves, with gains and feed-forward per robot: each step's natural strains by hand."""
    youngs = torch.tensor([[1e6], [2e6], [4e6]], dtype=torch.float64)
    model = rod(7, youngs)
    low, high = (shape(model, height).values for height in (0.0, 0.01))
    reference = Table(torch.tensor([0.0, 0.03, 1.0], dtype=torch.float64), torch.stack([low, high, low]))
    gains = {
        "Kp": torch.tensor([0.2, 0.4, 0.6]),
        "Ki": torch.tensor([0.0, 5.0, 10.0]),
        "feed_forward": torch.tensor([0, 1, 0]),
    }
    found = by_hand(model, pi(model, reference=reference, **gains), 6)
    assert (found.std(1) > 0).any() and found.shape[1] == 3


def smoothing_matrix(parts) -> torch.Tensor:
    """Return S (m, m) of one pass along one rod: (1, 2, 1) / 4 in each field, where an end counts itself twice."""
    blocks = []
    for part in parts:
        count = part.stop - part.start
        block = torch.diag(torch.full((count,), 0.5, dtype=torch.float64))
        block += torch.diag(torch.full((count - 1,), 0.25, dtype=torch.float64), 1)
        block += torch.diag(torch.full((count - 1,), 0.25, dtype=torch.float64), -1)
        block[0, 0] = block[-1, -1] = 0.75
        blocks.append(block)
    return torch.block_diag(*blocks)


def test_errors_are_smoothed_before_they_are_integrated():
    """Bind rates and limits with smoothing on: action and integral are those of the formulas, by hand, at each step.

    Limits tell S (Kp e + Ki z), e not smoothed, from Kp e + Ki z with e smoothed: they hold single elements back.
    """
    model = rod(7)
    rate, limit = {"stretch": 0.5, "curvature": 200.0}, {"stretch": 0.05, "kappa1": 8.0}
    controller = pi(model, rate=rate, limit=limit, smoothing=1)
    strains = controller.strains
    smooth = smoothing_matrix(strains.parts.values())
    change, most = (torch.empty(len(strains), dtype=torch.float64) for _ in range(2))
    for name, part in strains.parts.items():
        change[part], most[part] = {"stretch": (0.5 * DT, 0.05), "kappa1": (200.0 * DT, 8.0)}[name]
    action = integral = torch.zeros(1, len(strains), dtype=torch.float64)
    held_back: list[float] = []
    for frame in frames(model, model.initial_state(), ImplicitEuler(DT), 30, controller=controller, throw=True):
        # rounding of sums of a few numbers of this size
        torch.testing.assert_close(frame.memory["action"], action, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(frame.memory["integral"], integral, rtol=1e-12, atol=1e-12)
        error = (controller.reference.values - strains.measured(frame.state, model)) @ smooth.t()
        summed = integral + DT * error
        wanted = 0.5 * error + 10.0 * summed
        given = torch.clamp(torch.clamp(wanted, action - change, action + change), -most, most)
        now = ((wanted > given) & (error > 0)) | ((wanted < given) & (error < 0))
        action, integral = given, torch.where(now, integral, summed)
        held_back.append(now.double().mean().item())
    assert any(0 < share < 1 for share in held_back)


@pytest.mark.slow
def test_the_loop_converges():
    """Reach the wave of the example with few nodes: nodes are within 3e-5 m after 1.5 s, from 6 mm."""
    model = rod(9)
    run = rollout(model, model.initial_state(), ImplicitEuler(DT), 150, every=50, controller=pi(model), throw=True)
    error = (run.positions - wave(9)).square().sum(-1).mean(-1).sqrt()[:, 0]
    assert error[0] > 5e-3 and error[-1] < 3e-5


def test_angles_along_no_rod_are_not_smoothed():
    """Refuse smoothing where no strain has a neighbour to be smoothed with."""
    model = strip("midedge")
    strains = Strains(model, ["hinge_angle"])
    still = Fixed(torch.zeros(len(strains), dtype=torch.float64))
    with pytest.raises(InputError, match="PI: smoothing: expected 0, got 2: none of these strains has a neighbour"):
        PI(model, strains, still, DT, smoothing=2)


@pytest.mark.parametrize("bending", ["hinge", "midedge"])
def test_sheets_take_a_shape_by_their_angles(bending):
    """Fold a strip upwards against its weight: its nodes come from 6 cm to where the folded squares have them."""
    model, shape = strip(bending), torch.tensor(folded_strip(0.15))
    strains = Strains(model, ["hinge_angle"])
    controller = PI(model, strains, Fixed(strains.of_shape(model, shape)), DT, Kp=0.5, Ki=10.0)
    run = rollout(model, model.initial_state(), ImplicitEuler(DT), 250, every=250, controller=controller, throw=True)
    error = (run.positions - shape).norm(dim=-1).amax(-1)[:, 0]
    # what stays is how far the weight stretches the strip, which no angle tells: 11 N/m^2 * (0.1 m)^2 / (1e5 N/m) at
    # most, and what the integral has not made up for yet
    assert error[0] > 0.05 and error[-1] < 2e-6


# ---- limits --------------------------------------------------------------------------------------------------------


def actions(model, controller, steps, batch=1):
    """Return the natural strains (steps + 1, B, k) along a run, and the integrals."""
    run = frames(model, model.initial_state(batch), ImplicitEuler(DT), steps, controller=controller, throw=True)
    memories = [frame.memory for frame in run]
    return tuple(torch.stack([memory[name] for memory in memories]) for name in ("action", "integral"))


def test_rate_and_limit_hold():
    """Bind rate and limit: natural strains never leave them, and end at the limit where the target is beyond."""
    model = rod(7)
    controller = pi(model, rate={"stretch": 0.5, "curvature": 200.0}, limit={"stretch": 0.05, "kappa1": 8.0})
    found, _ = actions(model, controller, 40)
    stretch, curvature = (found[..., part] for part in controller.strains.parts.values())
    # rounding of a difference of numbers of this size
    assert stretch.diff(dim=0).abs().max() <= 0.5 * DT + 1e-15 and curvature.diff(dim=0).abs().max() <= 2.0 + 1e-13
    assert curvature.diff(dim=0).abs().max() > 1.99
    assert stretch.abs().max() == 0.05 and curvature.abs().max() == 8.0
    assert (curvature[-1].abs() == 8.0).any()


def test_integrals_do_not_wind_up():
    """Hold a target beyond the limit for long: the integral stands where the limit binds; without limits it grows."""
    model = rod(7)
    bounded = pi(model, limit={"curvature": 8.0}, Ki=20.0)
    found, integral = actions(model, bounded, 60)
    at_limit = found[-1].abs() == 8.0
    assert at_limit.any()
    assert torch.equal(integral[-1][at_limit], integral[-20][at_limit])
    wanted = 20.0 * integral[-1][at_limit]
    assert (wanted.abs() <= 8.0 + 20.0 * DT * 40).all()  # at most a step beyond


def test_rest_lengths_stay_above_their_share():
    """Ask for a shorter rod with much gain: rest lengths stop at their share; what asks for less is refused."""
    model = rod(7)
    start = model.initial_state()
    short = Fixed(Strains(model).of_shape(model, wave(7, 0.0) * 0.65))
    controller = pi(model, reference=short, least_length=0.6, Kp=0.9, feed_forward=True)
    control, memory = controller(start, controller.initial(model, start), Control(), model)
    assert (memory["action"][:, controller.strains.parts["stretch"]] == 0.6 - 1).all()
    torch.testing.assert_close(control.rest_length, 0.6 * model.body.edge_length[None])
    assert "reference: asks for 0.65 of a rest length, expected 0.7" in refused(
        model, pi(model, reference=short, least_length=0.7)
    )
    with pytest.raises(InputError, match="limit: stretch: 0.5 leaves 0.5 of the rest lengths, expected 0.6"):
        pi(model, limit={"stretch": 0.5}, least_length=0.6)


# ---- actuators -----------------------------------------------------------------------------------------------------


def test_chambers_set_many_strains():
    """Let two chambers bend a half of the rod each: natural curvature is the step that is closest."""
    model = rod(9, gravity=0.0, held="clamped")
    strains, start = Strains(model, ["curvature"]), model.initial_state()
    matrix = torch.zeros(len(strains), 2, dtype=torch.float64)
    matrix[:3, 0], matrix[3:, 1] = 1.0, 2.0
    wanted = torch.linspace(0, 10, len(strains), dtype=torch.float64)
    controller = PI(model, strains, Fixed(wanted), DT, Kp=0.5, Ki=0.0, actuators=matrix)
    control, memory = controller(start, controller.initial(model, start), Control(), model)
    means = torch.stack([wanted[:3].mean(), wanted[3:].mean()])
    torch.testing.assert_close(memory["action"][0], 0.5 * means / torch.tensor([1.0, 2.0], dtype=torch.float64))
    step = 0.5 * means.repeat_interleave(torch.tensor([3, 4]))
    torch.testing.assert_close(control.natural_curvature[0, :, 0], step * 0.1 / 8)
    limited = PI(model, strains, Fixed(10 * wanted), DT, actuators=matrix, limit={"curvature": 7.0})
    _, memory = limited(start, limited.initial(model, start), Control(), model)
    assert memory["action"][0].tolist() == [7.0, 3.5]  # a chamber that bends by twice its action has half the limit


def test_some_elements_act():
    """Give every second spring an actuator: the others keep the model's own natural curvature."""
    model = rod(9, points=wave(9).numpy(), natural="straight")
    strains = Strains(model, ["curvature"])
    controller = PI(
        model, strains, Fixed(torch.zeros(len(strains), dtype=torch.float64)), DT, actuators={"curvature": [0, 2, 4]}
    )
    memory = controller.initial(model, model.initial_state())
    assert memory["action"].shape == (1, 3)
    control, _ = controller(model.initial_state(), memory, Control(), model)
    assert (control.natural_curvature[0, 1::2, 0].abs() < 1e-12).all()


@pytest.mark.parametrize("kind", [list, np.asarray, torch.as_tensor])
def test_elements_that_act_may_be_a_mask(kind):
    """Choose actuators by a mask over all rod edges, as for `Strains`, of which some are not controlled."""
    model = rod(7)
    strains = Strains(model, ["stretch"], {"stretch": [1, 3, 4, 5]})
    still, mask = Fixed(torch.zeros(4, dtype=torch.float64)), [False, False, False, True, False, True]
    controller = PI(model, strains, still, DT, actuators={"stretch": kind(mask)})
    assert controller.actuators.any(1).tolist() == [False, True, False, True]  # of edges 1, 3, 4 and 5
    with pytest.raises(InputError, match="PI: actuators: stretch: element 2 is not among those controlled"):
        PI(model, strains, still, DT, actuators={"stretch": [3, 2]})


def test_actuators_of_fields_that_are_not_controlled_are_refused():
    """Control the stretch alone: actuators of curvatures are refused, as rates and limits of them are."""
    model = rod(7)
    strains = Strains(model, ["stretch"])
    still = Fixed(torch.zeros(len(strains), dtype=torch.float64))
    with pytest.raises(InputError, match="PI: actuators: no field 'curvature' is controlled; there are stretch"):
        PI(model, strains, still, DT, actuators={"curvature": [0], "stretch": [0]})


def test_strains_without_an_actuator_keep_those_of_the_control():
    """Bring natural strains along: the law replaces those that have an actuator alone."""
    model = rod(9, held="clamped")
    strains, start = Strains(model), model.initial_state()
    given = model.natural_strains(1)
    curvature = 0.1 + given.natural_curvature
    brought = Control(natural_curvature=curvature, rest_length=1.2 * given.rest_length)
    still = Fixed(torch.zeros(len(strains), dtype=torch.float64))
    controller = PI(model, strains, still, DT, actuators={"curvature": [2], "stretch": [3]})
    control, _ = controller(start, controller.initial(model, start), brought, model)
    curvature[0, 2, 0], brought.rest_length[0, 3] = 0.0, given.rest_length[0, 3]
    torch.testing.assert_close(control.natural_curvature, curvature)
    torch.testing.assert_close(control.rest_length, brought.rest_length)
    kept = {field: controller.leaves(model, field) for field in ("stretch", "kappa1", "kappa2")}
    assert kept == {"stretch": True, "kappa1": True, "kappa2": False}  # kappa2 of a planar robot cannot change
    everywhere = PI(model, strains, still, DT)
    assert not everywhere.leaves(model, "stretch") and not everywhere.leaves(model, "kappa1")


# ---- sampling, delay, noise ----------------------------------------------------------------------------------------


def test_samples_are_held():
    """Sample every third step: natural strains change then alone, by the law with that time between samples."""
    model = rod(7)
    found, integral = actions(model, pi(model, every=3 * DT), 9)
    changed = (found.diff(dim=0) != 0).flatten(1).any(1).tolist()
    assert changed == [True, False, False] * 3
    error = shape(model).values - pi(model).strains.measured(model.initial_state(), model)
    torch.testing.assert_close(integral[1], 3 * DT * error)


def test_what_is_seen_is_late():
    """Delay by two steps: the law answers to the strains of two steps before, at the start to those of the start."""
    model = rod(7)
    controller = pi(model, delay=2, Ki=0.0)
    run = list(frames(model, model.initial_state(), ImplicitEuler(DT), 6, controller=controller))
    seen = [controller.strains.measured(frame.state, model) for frame in run]
    for step in range(6):
        expected = 0.5 * (controller.reference.values - seen[max(step - 2, 0)])
        torch.testing.assert_close(run[step + 1].memory["action"], expected)


def test_noise_is_a_function_of_seed_robot_and_step():
    """Draw numbers: normal, the same in parts of a batch and of a run, others for another seed, robot or step."""
    robot, step = torch.arange(64), torch.full((64,), 7)
    drawn = normal(5, robot, step, 500, torch.float64)
    # 32,000 numbers: the mean is within 5 / sqrt(32000), the variance within 5 sqrt(2 / 32000)
    assert abs(drawn.mean()) < 0.028 and abs(drawn.var() - 1) < 0.04 and (drawn.abs() > 3).any()
    # correlations of rows and columns: their largest of 2016 pairs of 500 numbers is about 4 / sqrt(500)
    rows = torch.corrcoef(drawn) - torch.eye(64)
    assert rows.abs().max() < 0.25
    assert torch.equal(normal(5, robot[10:20], step[10:20], 500, torch.float64), drawn[10:20])
    assert not torch.isclose(normal(6, robot, step, 500, torch.float64), drawn).any(1).all()
    assert not torch.isclose(normal(5, robot, step + 1, 500, torch.float64)[0], drawn[0]).all()
    # and of step k of one robot with step k of the next, which a sum of their numbers would mix up
    assert not torch.isclose(
        normal(5, robot[:1] + 1, step[:1], 9, torch.float64), normal(5, robot[:1], step[:1] + 1, 9, torch.float64)
    ).any()


def test_noise_enters_what_is_measured():
    """See strains with noise: the first action differs by Kp times it, from robot to robot, and is the same again."""
    model = rod(7)
    noise = {"curvature": 0.5}
    clean, noisy, again, other = (
        actions(model, pi(model, Ki=0.0, **options), 1, batch=3)[0][1]
        for options in ({}, {"noise": noise}, {"noise": noise}, {"noise": noise, "robots": [2, 1, 7]})
    )
    stretch, curvature = Strains(model).parts.values()
    assert torch.equal(noisy, again) and torch.equal(noisy[:, stretch], clean[:, stretch])
    change = (noisy - clean)[:, curvature]
    expected = -0.5 * 0.5 * normal(0, torch.arange(3), torch.zeros(3, dtype=torch.int64), 11, torch.float64)[:, 6:]
    torch.testing.assert_close(change, expected)
    assert torch.equal(other[1], noisy[1]) and torch.equal(other[0], noisy[2])


def test_all_of_it_is_memory():
    """Cut a run with sampling time, delay, noise and limits in the middle of a sample: it goes on bit for bit."""
    model = rod(7)
    options = {"every": 3 * DT, "delay": 2, "noise": {"curvature": 0.1}, "rate": {"curvature": 300.0}, "seed": 4}
    start, integrator = model.initial_state(2), ImplicitEuler(DT)
    whole = rollout(model, start, integrator, 10, controller=pi(model, **options))
    first = rollout(model, start, integrator, 4, controller=pi(model, **options))
    rest = rollout(model, first.state, integrator, 6, controller=pi(model, **options), memory=first.memory)
    assert torch.equal(rest.positions[-1], whole.positions[-1]) and whole.memory.keys() == rest.memory.keys()
    assert all(torch.equal(rest.memory[name], value) for name, value in whole.memory.items())
    assert {"step", "robot", "action", "seen", "integral"} == set(whole.memory)


# ---- gradients -----------------------------------------------------------------------------------------------------


def in_plane():
    """Return a rod, its strains and what they shall be: the wave."""
    model = rod(7)
    return model, Strains(model), shape(model).values


def in_space():
    """Return a rod that is clamped at one end, all its strains, and what they shall be: a helix that is twisted."""
    model = rod(7, youngs=1e7, planar=False, held="clamped")
    strains = Strains(model, ["stretch", "curvature", "twist"])
    wanted = {"stretch": 0.05, "kappa1": 15.0, "kappa2": -8.0, "twist": 20.0}
    return model, strains, torch.cat([strains.undeformed[part] + wanted[name] for name, part in strains.parts.items()])


@pytest.mark.parametrize(
    ("robot", "steps"),
    [
        (in_plane, 8),
        (in_space, 4),
        pytest.param(in_plane, 50, marks=pytest.mark.slow),
        pytest.param(in_space, 50, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("every", [None, 3])
def test_derivatives_of_a_closed_loop(robot, steps, every):
    """Differentiate by gains, stiffness, reference and initial state through the memory; hold against differences."""
    model, strains, values = robot()
    stiffness = trainable.scaled(model, ["stretch.EA", "bend_twist.EI1"])
    values = values.clone().requires_grad_()
    controller = PI(model, strains, Fixed(values), DT, rate={"curvature": 500.0})
    Kp, Ki = (trainable.scaled(controller, [name]).log_factor for name in ("Kp", "Ki"))
    q = model.initial_state().q.clone()
    q[0, 3 * 3 + 2] += 1e-3  # the middle, upwards
    q.requires_grad_()
    integrator = ImplicitEuler(DT, force_tolerance=1e-14, relative_tolerance=0)

    def loss(**options):
        run = unroll(model, model.initial_state(q=q), integrator, steps, controller=controller, throw=True, **options)
        # all that the loop leaves: positions, and what it remembers
        return 1e4 * (run.positions[1:] - wave(7)).square().sum(-1).mean() + run.memory["integral"].square().sum()

    given = (Kp, Ki, stiffness.log_factor, values, q)
    slopes = torch.autograd.grad(loss(checkpoint_every=every), given)
    free = model.free[None]
    for tensor, slope in zip(given, slopes, strict=True):
        direction = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        direction = direction * free * 1e-3 if tensor is q else direction
        # by a micrometre, or a ten-thousandth of others: what steps are solved to moves nodes by 1e-12 m
        step = {id(q): 1e-3}.get(id(tensor), 1e-4)

        def moved(by: float, tensor=tensor, direction=direction) -> float:
            before = tensor.detach().clone()
            with torch.no_grad():
                tensor += by * direction
                found = float(loss())
                tensor.copy_(before)
            return found

        expected = (moved(step) - moved(-step)) / (2 * step)
        # the error of the difference, of second order in the step: 4e-7; rounding of 50 steps, 1e-11 of the loss: 1e-6
        assert float((slope * direction).sum()) == pytest.approx(expected, rel=3e-6), tensor.shape


def test_gains_are_trained_and_stay_positive():
    """Take steps of an optimiser that would drive gains below zero: they are factors of what they were."""
    model = rod(7)
    controller = pi(model, Kp=torch.tensor([0.5, 0.4]), Ki=torch.tensor([10.0, 5.0]))
    factor = trainable.scaled(controller, ["Kp", "Ki"], shape=(2, 1))
    optimizer = torch.optim.SGD(factor.parameters(), lr=10.0)
    for _ in range(3):
        optimizer.zero_grad()
        (controller.Kp.sum() + controller.Ki.sum()).backward()
        optimizer.step()
    assert (controller.Kp >= 0).all() and (controller.Ki >= 0).all() and controller.Kp.shape == (2, 1)
    with pytest.raises(InputError, match="Ki is zero wherever"):
        trainable.scaled(pi(model, Ki=0.0), ["Ki"])


# ---- what is refused -----------------------------------------------------------------------------------------------


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
        ({"dt": 0.0}, "dt: expected a finite number above 0"),
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


def refused(model, controller, integrator=None, steps=10, batch=1) -> str:
    """Return why a run is refused; both kinds of runs say the same."""
    said = set()
    for run in (rollout, unroll):
        with pytest.raises(InputError) as error:
            run(model, model.initial_state(batch), integrator or ImplicitEuler(DT), steps, controller=controller)
        said.add(str(error.value))
    (sentence,) = said
    return sentence


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
        ([0.0, 1.0], torch.zeros(2, 3), "stay", 'beyond: expected "refuse" or "hold", got \'stay\''),
    ],
)
def test_refuses_tables_that_are_none(times, values, beyond, message):
    """Refuse times that do not grow, values of other times, and an unknown end."""
    with pytest.raises(InputError, match=message):
        Table(torch.tensor(times), values, beyond)


@pytest.mark.slow
def test_loops_compile():
    """Compile steps and what is measured: a closed loop and its gradient are the eager ones up to rounding."""
    found = []
    for compile in (False, True):
        model = rod(7)
        model.compilation.setting = compile
        controller = pi(model)
        gains = trainable.scaled(controller, ["Kp", "Ki"])
        run = unroll(model, model.initial_state(), ImplicitEuler(DT, force_tolerance=1e-13), 4, controller=controller)
        run.state.q.square().sum().backward()
        found.append((run.state.q.detach(), gains.log_factor.grad))
    (eager, slope), (compiled, compiled_slope) = found
    assert (eager - compiled).abs().max() < 1e-10 and compiled_slope.item() == pytest.approx(slope.item(), rel=1e-6)
