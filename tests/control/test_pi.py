"""The PI law: what it computes, its limits, what acts, and what it sees."""

import numpy as np
import pytest
import torch

from tests.control.robots import DT, folded_strip, pi, refused, rod, shape, strip, wave
from tests.rods import rod_through
from torchdismech import Circle, Control, ImplicitEuler, InputError, Material, rollout, straight
from torchdismech.control import PI, Fixed, Strains, Table
from torchdismech.control.noise import normal
from torchdismech.runs.rollout import frames


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


def test_whether_the_reference_is_added_is_a_truth():
    """Take a truth, or one of each robot, for 1 and 0: no other gain is one."""
    model = rod(5)
    reference = Fixed(shape(model, 0.01).values)
    for given, kept in ((True, [[1.0]]), (False, [[0.0]]), (torch.tensor([True, False]), [[1.0], [0.0]])):
        assert pi(model, reference=reference, feed_forward=given).feed_forward.tolist() == kept


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


def test_curvatures_are_smoothed_up_to_a_clamp_with_a_direction():
    """Control a rod that a clamp holds in its middle, in a direction: curvatures have no neighbours across it."""
    builder = rod_through(straight((0, 0, 0), (0.2, 0, 0), 9), Circle(2e-3), Material(1e6, 1000.0), held="not")
    builder.clamp(nodes=[4], direction="rest")
    model = builder.finalize()
    strains = Strains(model, ["kappa1"])
    still = Fixed(torch.zeros(len(strains), dtype=torch.float64))
    PI(model, strains, still, DT, smoothing=1)
    before, after = strains.neighbours(model).tolist()
    assert before[:6] == [0, 0, 1, 3, 3, 4] and after[:6] == [1, 2, 2, 4, 5, 5]


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


def test_natural_strains_beyond_the_limit_come_back_at_the_rate():
    """Begin 3 1/m beyond the limit on either side: the way back is a tenth of that a sample on both."""
    model = rod(7)
    controller = pi(model, rate={"curvature": 30.0}, limit={"curvature": 8.0}, Kp=0.0, Ki=0.0)
    zero = torch.zeros(1, len(controller.strains), dtype=torch.float64)
    for side in (1.0, -1.0):
        action = zero.clone()
        action[:, controller.strains.parts["kappa1"]] = side * 11.0
        for expected in (10.7, 10.4):
            action, _ = controller.response(zero, zero[:, 0], action, {"integral": zero})
            left = action[:, controller.strains.parts["kappa1"]]
            torch.testing.assert_close(left, torch.full_like(left, side * expected))


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
