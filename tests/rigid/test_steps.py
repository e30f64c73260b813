"""Steps of chains: orders, the pendulum of the references, energy, failing rows, batches."""

import numpy as np
import pytest
import torch

from tests.rigid.chains import cable, random_motion, reference, tensor
from torchdismech import Control, InputError, SimulationError, Status, Trajectory, TrajectoryWriter, rollout, unroll
from torchdismech.rigid import ChainState, Radau, RigidChain, Sdirk2, chain_integrator, natural_frequencies


def held_at(state, control, model):
    """Return the torque that holds the pendulum at an angle, which changes at 2.5 s."""
    goal = torch.where(state.time < 2.5 - 1e-9, 0.0, np.pi / 4)
    return model.drive(2.5 * (goal - state.q[:, 0]) - 0.05 * state.velocity[:, 0])


def soft(space, viscosity):
    """Return a chain of two segments whose fastest vibrations steps resolve: in space its bodies are round."""
    chain = cable(2, space, youngs=2e9, viscosity=viscosity, shear=1e9 if space else None)
    if space:
        chain.inertia_x.copy_(chain.inertia_y)
    return chain


def swung(chain, integrator, steps, **start):
    """Return the joint angles (steps + 1, B, J) under that controller."""
    with torch.no_grad():
        return unroll(chain, chain.initial_state(**start), integrator, steps, controller=held_at, throw=True).q


@pytest.mark.parametrize(
    ("segments", "integrator", "within"),
    [
        # the accurate one: 1e-6 rad are asked for
        pytest.param(3, Radau(0.01, h=2e-3), 1e-6, marks=pytest.mark.slow),
        pytest.param(5, Radau(0.01, h=2e-3), 1e-6, marks=pytest.mark.slow),
        # the cheap one: 1e-3 rad are asked for
        pytest.param(3, Sdirk2(0.01, h=2e-3), 1e-3, marks=pytest.mark.slow),
        pytest.param(5, Sdirk2(0.01, h=2e-3), 1e-3, marks=pytest.mark.slow),
        # a third of a period in four parts of a step, in the default tests
        (5, Radau(0.01, h=2.5e-3), 2e-6),
    ],
)
def test_pendulum_swings_as_the_reference(segments, integrator, within):
    """Follow all joints over all frames with the control held over 0.01 s, also where the goal changes."""
    data = reference(f"rfem_pendulum_{segments}seg")
    frames = 502 if within != 2e-6 else 41
    q = swung(cable(segments), integrator, frames - 1)[:, 0].numpy()
    assert np.abs(q - data["q_zoh"][:frames]).max() < within
    if frames == 502:
        tip = cable(segments).points(tensor(q))[:, -1].numpy()
        assert np.abs(tip - data["p_ee_zoh"]).max() < 3 * within


@pytest.mark.parametrize(
    ("kind", "order", "steps", "space"),
    [
        (Radau, 5, (10, 20, 40), False),
        (Sdirk2, 2, (40, 80), False),
        pytest.param(Radau, 5, (10, 20, 40), True, marks=pytest.mark.slow),
        pytest.param(Sdirk2, 2, (40, 80, 160), True, marks=pytest.mark.slow),
    ],
)
def test_orders(kind, order, steps, space):
    """Halve the step of a soft, lightly damped chain: the error at the end falls by 2 to the method's order."""
    chain = soft(space, viscosity=1e6)
    q, velocity, _ = random_motion(chain, 2)
    start, duration = chain.initial_state(q=q, velocity=velocity), 0.2

    def end(integrator):
        return integrator.step(chain, start, throw=True)[0].q

    exact = end(Radau(duration, h=duration / 160, tolerance=1e-14))
    errors = [float((end(kind(duration, h=duration / n, tolerance=1e-13)) - exact).abs().max()) for n in steps]
    found = np.log2(np.divide(errors[:-1], errors[1:]))
    # between finite steps the order is approached from one side
    assert abs(found[-1] - order) < 0.25, (errors, found)


@pytest.mark.parametrize("space", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_energy_is_kept_without_damping(space):
    """Let an undamped chain of two segments swing for a second: what is lost is the integrator's, of order 5."""
    chain = soft(space, viscosity=0.0)
    q = torch.full((1, chain.n_dofs), 0.2, dtype=torch.float64)
    start = chain.initial_state(q=q)
    total = [float(sum(chain.energies(start).values()))]
    drifts = []
    swing = max(float(chain.energies(start)["elastic"]), 0.1)  # J: what goes to and fro
    for h in (1e-2, 5e-3):
        with torch.no_grad():
            run = unroll(chain, start, Radau(0.01, h=h, tolerance=1e-13), 100, throw=True)
        total = float(sum(chain.energies(run.state).values()))
        drifts.append(abs(total - float(sum(chain.energies(start).values()))) / swing)
    # the drift of the springs' vibration (20 Hz) at h = 5 ms, and its order
    assert drifts[1] < 1e-3 and drifts[1] < drifts[0] / 16, drifts


def test_rows_are_robots_alone():
    """Step robots of unlike material and state together and each for itself."""
    youngs = torch.tensor([[1e9], [2e10], [3e10]], dtype=torch.float64)
    density = torch.tensor([[1000.0], [2710.0], [5000.0]], dtype=torch.float64)
    for space in (False, True):
        chain = cable(3, space, youngs=youngs, density=density)
        q, velocity, _ = random_motion(chain, 3)
        for integrator in (Radau(0.01), Sdirk2(0.01, h=5e-3)):
            together = swung(chain, integrator, 5, q=q, velocity=velocity)
            for k in range(3):
                alone = cable(3, space, youngs=youngs[k].item(), density=density[k].item())
                single = swung(alone, integrator, 5, q=q[k : k + 1], velocity=velocity[k : k + 1])
                # rounding, which the springs of a stiff chain make larger; iterations stop row by row
                assert float((together[:, k] - single[:, 0]).abs().max()) < 1e-11


def test_a_row_that_fails_stays_alone():
    """Keep the state of a robot that spins faster than numbers go and of one that is NaN; step the others as alone."""
    chain = cable(3)
    q, velocity, _ = random_motion(chain, 4)
    velocity[1] = 1e200
    start = chain.initial_state(q=q, velocity=velocity)
    start.q[2, 1] = torch.nan
    for integrator in (Radau(0.01), Sdirk2(0.01)):
        after, info = integrator.step(chain, start)
        assert info.status.tolist() == [Status.CONVERGED, Status.NOT_FINITE, Status.NOT_FINITE, Status.CONVERGED]
        for k in (1, 2):
            torch.testing.assert_close(after.q[k], start.q[k], rtol=0, atol=0, equal_nan=True)
            assert after.time[k] == 0
        rest = start.rows([0, 3])
        expected, _ = integrator.step(chain, rest)
        torch.testing.assert_close(after.rows([0, 3]).q, expected.q, rtol=0, atol=1e-13)  # rounding
        with pytest.raises(SimulationError, match="step from t = 0 s: .*robot .*2: not_finite"):
            integrator.step(chain, start, throw=True)


def test_smaller_steps_help_a_row_that_fails():
    """Take a step again in more parts where it did not converge, for that robot only."""
    chain = cable(3)
    velocity = torch.zeros(2, 4, dtype=torch.float64)
    velocity[1, 0] = 150.0
    start = chain.initial_state(velocity=velocity)
    _, info = Radau(0.01, max_iterations=8).step(chain, start)
    assert info.converged.tolist() == [True, False]
    after, info = Radau(0.01, max_iterations=8, max_substeps=64).step(chain, start, throw=True)
    assert info.substeps[0] == 1 and info.substeps[1] > 1
    fine, _ = Radau(0.01, h=0.01 / 64).step(chain, start, throw=True)
    # the fast one is as exact as its parts, 1 ms or shorter, are
    torch.testing.assert_close(after.q[1], fine.q[1], rtol=1e-4, atol=0)
    assert after.time.tolist() == [0.01, 0.01]


def test_a_schedule_is_sampled_where_the_control_begins_to_hold():
    """Hold what is set for the start of a step over all of it."""
    chain = cable(2)
    asked = []

    def schedule(time, model):
        asked.append(float(time[0]))
        return model.drive(0.1 * time)

    with torch.no_grad():
        run = unroll(chain, chain.initial_state(), Radau(0.01, h=5e-3), 3, schedule=schedule)
    assert np.allclose(asked, [0.0, 0.01, 0.02])
    state = chain.initial_state()
    for k in range(3):
        state, _ = Radau(0.01, h=2.5e-3).step(chain, state, chain.drive(0.1 * 0.01 * k))
    # the same control, parts half as long
    assert float((run.q[-1] - state.q).abs().max()) < 1e-6


def test_a_rollout_becomes_a_trajectory():
    """Store positions, energies and angles of a batch, draw it; files are refused by name."""
    chain = cable(3, youngs=torch.tensor([[1e10], [2e10]], dtype=torch.float64))
    trajectory = rollout(chain, chain.initial_state(), Radau(0.01), 10, controller=held_at, every=5)
    assert trajectory.positions.shape == (3, 2, 5, 3) and trajectory.twist.shape == (3, 2, 4)
    assert trajectory.time.tolist() == pytest.approx([0, 0.05, 0.1])
    torch.testing.assert_close(trajectory.positions[-1], chain.points(trajectory.twist[-1]))
    assert set(trajectory.energies) == {"kinetic", "gravity", "elastic"} and not trajectory.failed.any()


def test_pictures_of_chains(tmp_path):
    """Draw a chain as a rod."""
    pytest.importorskip("matplotlib")
    from torchdismech.view import save_picture

    chain = cable(3)
    trajectory = rollout(chain, chain.initial_state(), Radau(0.01), 5)
    save_picture(trajectory, tmp_path / "chain.png")
    assert (tmp_path / "chain.png").stat().st_size > 1000


@pytest.mark.parametrize("space", [False, True])
def test_a_run_goes_on_from_its_file(space, tmp_path):
    """Write frames to a file as they come, read them back, and go on from the last state as if without a file."""
    chain = cable(2, space)
    whole = rollout(chain, chain.initial_state(2), Radau(0.01), 6, every=3, controller=held_at)
    writer = TrajectoryWriter(tmp_path / "chain.h5")
    rollout(chain, chain.initial_state(2), Radau(0.01), 3, every=3, controller=held_at, writer=writer)
    read = Trajectory.load(tmp_path / "chain.h5")
    assert isinstance(read.state, ChainState) and read.state_step == 3
    for name in ("positions", "velocities", "twist"):
        torch.testing.assert_close(getattr(read, name), getattr(whole, name)[:2], rtol=0, atol=0)
    rest = rollout(chain, read.state, Radau(0.01), 3, controller=held_at)
    torch.testing.assert_close(rest.twist[-1], whole.twist[-1], rtol=0, atol=0)
    rest.save(tmp_path / "rest.h5")
    torch.testing.assert_close(Trajectory.load(tmp_path / "rest.h5").state.q, whole.state.q, rtol=0, atol=0)


def test_a_file_of_a_chain_that_was_changed_is_refused(tmp_path):
    """Name what is wrong where the state has other joints than the frames."""
    h5py = pytest.importorskip("h5py")
    chain = cable(2)
    rollout(chain, chain.initial_state(), Radau(0.01), 1).save(tmp_path / "chain.h5")
    with h5py.File(tmp_path / "chain.h5", "r+") as file:
        for copy in ("state", "state/backup"):
            for name in ("q", "velocity", "acceleration"):
                del file[f"{copy}/{name}"]
                file[f"{copy}/{name}"] = np.zeros((1, 4))
    with pytest.raises(InputError, match="state/q: expected 3 dofs as in the rows, got 4"):
        Trajectory.load(tmp_path / "chain.h5")


def test_frequencies_are_those_of_a_beam():
    """Approach 1.71042 Hz of Euler and Bernoulli's clamped beam from above; and the known values for n segments."""
    # four digits are known
    known = {3: 1.7551, 5: 1.7262, 10: 1.7143, 20: 1.7114}
    for segments, frequency in known.items():
        assert float(natural_frequencies(cable(segments), 1)) == pytest.approx(frequency, abs=5e-5)
    in_space = natural_frequencies(cable(10, space=True), 4)[0]
    flat = natural_frequencies(cable(10), 2)[0]
    torch.testing.assert_close(in_space, flat.repeat_interleave(2))  # it bends in two planes alike


def test_a_chain_vibrates_at_its_frequency():
    """Let the first mode swing for a period without gravity and damping: it returns."""
    chain = cable(3, viscosity=0.0, gravity=(0.0, 0.0, 0.0))
    inertia = chain.mass_matrix(torch.zeros(1, 4, dtype=torch.float64))[0, 1:, 1:].numpy()
    values, vectors = np.linalg.eig(np.linalg.solve(inertia, chain.stiffness_z.item() * np.eye(3)))
    shape = tensor(vectors[:, values.argmin()])
    chain.inertia_z[0] = 1e6  # the element at the motor is as if held
    q = 1e-4 * torch.cat([torch.zeros(1, dtype=torch.float64), shape])[None]
    period = 1 / float(natural_frequencies(chain, 1))
    after, _ = Radau(period, h=period / 50).step(chain, chain.initial_state(q=q), throw=True)
    # 50 steps a period: an error of order 5, far below what another frequency would leave
    assert float((after.q - q).abs().max()) < 1e-5 * float(q.abs().max())


@pytest.mark.parametrize("name", ["radau", "sdirk2"])
def test_integrators_by_name(name):
    """Make either; refuse others."""
    assert chain_integrator(name, 0.01, h=5e-3).parts == 2
    with pytest.raises(InputError, match="integrator: expected one of 'radau', 'sdirk2', got 'rk45'"):
        chain_integrator("rk45", 0.01)


REFUSED = {
    "h above dt": (lambda: Radau(0.01, h=0.02), "h: expected a whole part of dt = 0.01 s.*got 0.02 s"),
    "h no part of dt": (lambda: Radau(0.01, h=3e-3), "h: expected a whole part"),
    "dt": (lambda: Radau(0.0), "dt: expected a number of seconds above 0"),
    "tolerance": (lambda: Sdirk2(0.01, tolerance=float("nan")), "tolerance: expected a finite number"),
    "no segment": (lambda: cable(0), "segments: expected a whole number from 1 up, got 0"),
    "half a segment": (lambda: cable(1.5), "segments: expected a whole number"),
    "length": (lambda: cable(3, length=0.0), "length: expected a finite number above 0"),
    "lengths": (lambda: cable(3, length=[1.0, 2.0]), "length: expected that of the whole"),
    "diameter": (lambda: cable(3, diameter=-1e-3), "diameter: expected a finite number above 0"),
    "a diameter": (lambda: cable(3, diameter=[1e-3, 1e-3, 0.0, 1e-3]), "diameter: expected a finite number above 0"),
    "too few diameters": (
        lambda: cable(3, diameter=[1e-3] * 3),
        r"diameter: expected a number, \(4,\).*got shape \(3,\)",
    ),
    "youngs": (lambda: cable(3, youngs=0.0), "youngs: expected a finite number above 0"),
    "viscosity": (lambda: cable(3, viscosity=-1.0), "viscosity: expected finite numbers from 0 up"),
    "shear is missing": (lambda: cable(3, space=True, shear=None), "shear: a chain in space needs the shear modulus"),
    "text for space": (lambda: cable(3, space="no", shear=1e6), "space: expected True or False, got 'no'"),
    "lengths in single precision": (
        lambda: RigidChain(torch.tensor([0.1, 0.2]), [0.1, 0.1], [0.05, 0.1], [1e-4, 1e-4], [1.0]),
        "RigidChain: expected all constants in one dtype, got length in torch.float32; mass, centre, .* tensor.double",
    ),
    "sideways gravity": (lambda: cable(3, gravity=(0.0, 1.0, 0.0)), "gravity: a chain in the plane"),
    "base": (lambda: cable(3, base=(0.0, 0.0)), r"base: expected a vector, \(3,\)"),
    "sideways base": (lambda: cable(3, base=(0.0, 1.0, 0.0)), "base: a chain in the plane"),
    "gravity of no direction": (
        lambda: cable(3, True, gravity=-9.81),
        r"gravity: expected a vector, \(3,\) or \(B, 3\), got shape \(\)",
    ),
    "shear in the plane": (lambda: cable(3, shear=1e9), "shear: a chain in the plane does not twist"),
    "robots of q": (lambda: cable(3).initial_state(3, q=torch.zeros(2, 4)), "is given for 2 robots, asked for are 3"),
    "no number of robots": (lambda: cable(3).initial_state(0), "batch: expected a whole number from 1 up, got 0"),
    "text for q": (lambda: cable(3).initial_state(q="bent"), "initial_state: q: expected numbers, got"),
    "half a frequency": (lambda: natural_frequencies(cable(3), 1.5), "count: expected a whole number from 1 up"),
    "numbers of robots": (
        lambda: cable(3, density=torch.ones(2, 1), gravity=torch.tensor([[0.0, 0.0, -1.0]] * 3)),
        r"constants are given for different numbers of robots: \[2, 3\]",
    ),
    "robots of a cylinder": (
        lambda: cable(3, density=torch.ones(2, 1), diameter=torch.ones(3, 1)),
        "diameter, density, .*: given for different numbers of robots",
    ),
    "state": (
        lambda: cable(3).initial_state(q=torch.full((4,), torch.nan)),
        "initial_state: q holds numbers that are not",
    ),
    "size of q": (lambda: cable(3).initial_state(q=torch.zeros(3)), r"initial_state: q has to be \(4,\)"),
    "a parameter": (
        lambda: cable(3, youngs=torch.nn.Parameter(torch.tensor(1e9, dtype=torch.float64))),
        r"RigidChain.cylinder: youngs: got an nn.Parameter; .*trainable.scaled\(chain, ",
    ),
    "points of one": (lambda: cable(3).points(torch.zeros(4)), r"q: expected a tensor of shape \(B, 4\), got \(4,\)"),
    "masses of others": (lambda: cable(3).mass_matrix(torch.zeros(1, 3)), r"q: expected a .* \(B, 4\), got \(1, 3\)"),
    "torques of others": (
        lambda: cable(3).inverse_dynamics(torch.zeros(1, 4), torch.zeros(2, 4), torch.zeros(1, 4)),
        "q, velocity, acceleration: of 1, 2, 1 robots",
    ),
    "control": (
        lambda: Radau(0.01).step(cable(3), cable(3).initial_state(), Control(force=torch.zeros(1, 3))),
        r"Control.force: expected shape \(1, 4\)",
    ),
    **{
        f"control in {dtype}": (
            lambda dtype=dtype: Radau(0.01).step(
                cable(3), cable(3).initial_state(), Control(force=torch.zeros(1, 4, dtype=dtype))
            ),
            f"Control.force: expected torch.float64, as the model is, got {dtype}",
        )
        for dtype in (torch.float32, torch.int64, torch.complex128)
    },
    "text for a modulus": (lambda: cable(3, youngs="2e10"), "youngs: expected numbers, got '2e10'"),
    "a truth for a modulus": (lambda: cable(3, youngs=True), "youngs: expected numbers, got True"),
    "no stiffness": (
        lambda: RigidChain([0.1, 0.1], 0.1, 0.05, 1e-4, None, space=True),
        "stiffness: in space expected three, about x, y and z, got None",
    ),
    "a list for the whole length": (
        lambda: RigidChain.cylinder(3, [1.0], 0.01, 1000.0, 1e6),
        r"length: expected that of the whole, a number or \(B, 1\), got shape \(1,\)",
    ),
    "text for masses": (lambda: RigidChain(0.1 * np.ones(3), ["1"] * 3, 0.05, 1e-4, 1.0), "mass: expected numbers"),
    "torques of a table": (lambda: cable(3).drive(torch.zeros(2, 5)), r"drive: torque: .* got shape \(2, 5\)"),
    "torques of other robots": (
        lambda: cable(3).drive(torch.zeros(3), 5),
        r"drive: torque: .* \(5,\), got shape \(3,\)",
    ),
    "half a robot": (lambda: cable(3).drive(1.0, 2.5), "drive: batch: expected a whole number from 1 up, got 2.5"),
    "energies of others": (lambda: cable(3).energies(cable(5).initial_state()), r"q: .* shape \(B, 4\), got \(1, 6\)"),
    "text for a torque": (lambda: cable(3).drive("a"), "drive: torque: expected numbers, got 'a'"),
    "rods' control": (
        lambda: Radau(0.01).step(cable(3), cable(3).initial_state(), Control(rest_length=torch.zeros(1, 3))),
        "Control.rest_length: a chain of rigid elements has none",
    ),
    "frequencies of no chain": (lambda: natural_frequencies(None, 1), "is for chains of rigid .* got NoneType"),
    "frequencies": (lambda: natural_frequencies(cable(3), 4), "count: expected 1 to 3"),
}


def test_numbers_of_numpy_count_for_all_axes():
    """Take a number of NumPy, single or whole, as one of Python."""
    chains = [RigidChain([0.1, 0.1], 0.1, 0.05, 1e-4, one, space=True) for one in (2, np.float32(2), np.int64(2))]
    assert [[float(getattr(c, f"stiffness_{axis}")) for axis in "xyz"] for c in chains] == [[2.0] * 3] * 3


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case):
    """Name what cannot be used, what was expected and what came."""
    action, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        action()


def test_states_may_be_given_as_lists_and_arrays():
    """Begin at what a tensor, a list and an array say alike, as rods do."""
    chain, bent = cable(3), [0.1, 0.2, 0.3, 0.4]
    states = [chain.initial_state(q=q) for q in (torch.tensor(bent, dtype=torch.float64), bent, np.array([bent]))]
    assert all(torch.equal(state.q, states[0].q) for state in states)


def locked_chain(about_y, velocity=(0.0, 3.0, 1.0, 0.0)):
    """Return a chain of two elements in space without springs, and its state with its joint turned about y."""
    chain = RigidChain(
        [0.1, 0.2], [1.0, 0.5], [0.05, 0.1], [1e-3, 1e-3, 1e-3], [0.0, 0.0, 0.0], space=True, gravity=(0.0, 0.0, 0.0)
    )
    return chain, chain.initial_state(q=[0.0, 0.0, about_y, 0.0], velocity=velocity)


def test_failures_at_gimbal_lock_are_named():
    """Turn a joint about y through 90 degrees: its step fails and says why; others of the batch do not."""
    chain, near = locked_chain(np.pi / 2 - 0.02)
    state = chain.initial_state(
        q=torch.cat([near.q, torch.zeros_like(near.q)]), velocity=near.velocity.expand(2, -1).contiguous()
    )
    for _ in range(10):
        state, info = Radau(5e-3).step(chain, state)
        if not info.converged.all():
            break
    assert info.status.tolist() == [Status.GIMBAL_LOCK, Status.CONVERGED]
    with pytest.raises(SimulationError, match="angle about y of a joint .* near 90 degrees"):
        Radau(5e-3).step(chain, state, throw=True)


def test_other_failures_are_not_said_to_be_gimbal_lock():
    """Keep the status of steps that fail far from there, and in the plane."""
    chain, state = locked_chain(0.3)
    assert Radau(5e-3, max_iterations=1).step(chain, state)[1].status.tolist() == [Status.MAX_ITERATIONS]
    plane = cable(3)
    state = plane.initial_state(q=[0.0, 0.0, np.pi / 2, 0.0], velocity=[0.0, 3.0, 1.0, 0.0])
    assert Radau(5e-3, max_iterations=1).step(plane, state)[1].status.tolist() == [Status.MAX_ITERATIONS]


def test_a_joint_at_gimbal_lock_has_a_singular_mass_matrix():
    """Hold the condition number that the page tells: 1.7e4 at .02 rad, infinite to rounding at the lock."""
    chain, _ = locked_chain(0.0)
    near, at = (torch.tensor([[0.0, 0.0, np.pi / 2 - off, 0.0]], dtype=torch.float64) for off in (0.02, 0.0))
    # the figure of the page has two digits
    assert torch.linalg.cond(chain.mass_matrix(near)).item() == pytest.approx(1.7e4, rel=0.05)
    assert torch.linalg.cond(chain.mass_matrix(at)).item() > 1e14


@pytest.mark.parametrize("integrator", [Radau, Sdirk2])
def test_single_precision_has_a_tolerance_of_its_own(integrator):
    """Fall for thirty steps in float32 as in float64, by the integrators as they are made."""
    ends = []
    for dtype in (torch.float64, torch.float32):
        chain = RigidChain.cylinder(4, 0.5, 0.01, 1000.0, 1e6, 1e3).to(dtype)
        run = rollout(chain, chain.initial_state(), integrator(0.01), 30, every=30)
        assert not bool(run.failed.any())
        ends.append(run.positions[-1].double())
    torch.testing.assert_close(*ends, rtol=0, atol=2e-4)  # what 1e-6 rad in each step add up to


def test_controls_that_are_not_finite_are_named():
    """Say that a drive holds NaN, not that a smaller step would do."""
    chain = cable(3)
    drive = chain.drive(torch.tensor([0.0, torch.nan]))
    state, said = chain.initial_state(2), "step from t = 0 s: .*Control.force of robot 1 at t = 0 s holds NaN"
    with pytest.warns(RuntimeWarning, match=said):
        _, info = Radau(0.01).step(chain, state, drive)
    assert info.status.tolist() == [Status.CONVERGED, Status.NOT_FINITE]
    with pytest.raises(SimulationError, match=said):
        Radau(0.01).step(chain, state, drive, throw=True)


def test_positions_of_runs_with_gradients():
    """Give the points of each state of `unroll`, as `rollout` does, with gradients."""
    chain = cable(3, diameter=torch.tensor([[6e-3], [8e-3]], dtype=torch.float64))
    q = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    run = unroll(chain, chain.initial_state(q=q), Radau(0.01), 3)
    expected = rollout(chain, chain.initial_state(2), Radau(0.01), 3).positions
    torch.testing.assert_close(run.positions.detach(), expected, rtol=0, atol=1e-12)  # rounding
    (gradient,) = torch.autograd.grad(run.positions[-1, :, -1, 2].sum(), q)
    assert bool((gradient[:, 0].abs() > 0.1).all())


@pytest.mark.parametrize(
    ("centres", "inertias", "said"),
    [
        ([9.0, -4.0], [1e-3] * 3, "a centre of mass lies farther outside of its element than that is long"),
        ([0.15, 0.1], [1.0, 1e-3, 1e-3], "inertias .* of no body"),
    ],
)
def test_elements_that_no_body_has_are_warned_of(centres, inertias, said):
    """Warn of centres of mass far outside, and of of inertias larger than the other two, where they are given."""
    with pytest.warns(UserWarning, match=said) as told:
        RigidChain([0.3, 0.2], 1.0, centres, inertias, [1.0] * 3, space=True)
    assert told[0].filename == __file__


def test_one_torque_drives_all_robots_of_a_chain():
    """Drive a chain whose constants are those of three robots by one number, as by one for each."""
    chain = RigidChain.cylinder(3, 1.2, 6e-3, 2710.0, torch.tensor([[1e10], [2e10], [3e10]], dtype=torch.float64))
    one, each = chain.drive(0.1), chain.drive(tensor([0.1, 0.1, 0.1]))
    assert torch.equal(one.force, each.force)
    assert not rollout(chain, chain.initial_state(), Radau(0.01), 2, lambda time, model: one).failed.any()


def test_steps_are_shown_in_a_line():
    """Print integrators and reports of steps of chains without their tensors."""
    chain, integrator = cable(2), Radau(0.01)
    _, info = integrator.step(chain, chain.initial_state(batch=2))
    assert repr(integrator) == "Radau(dt=0.01)"
    took = f"{float(info.iterations.double().mean()):.3g} iterations on average, at most {int(info.iterations.max())}"
    assert repr(info) == f"ChainStepInfo(2 robots: 2 CONVERGED; {took})"
