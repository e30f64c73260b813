"""Forces by loops: what torch finds by the same Python, in steps, recordings and gradients."""

import pytest
import torch

from tests.integrate.recordings import plates, rods_on_cpu
from torchdismech import forces
from torchdismech.forces.elements import ElementForce
from torchdismech.fused import Fused, differentiated
from torchdismech.native import Unavailable, library
from torchdismech.native.graphs import recorded

# Loops and torch round each of some tens of products and sums once, and in another order where compilers contract.
ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-5}


def per_robot(low, high, robots):
    """Return one number of each robot, (B, 1); one number for a robot alone."""
    return torch.linspace(low, high, robots, dtype=torch.float64)[:, None] if robots > 1 else low


def rods(force, robots):
    """Return rods whose edges differ in length, of robots that differ in it."""
    model = rods_on_cpu(robots, force)
    length = model.body.edge_length * torch.linspace(1, 2, model.body.n_edges, dtype=torch.float64)
    model.body.edge_length = length * torch.as_tensor(per_robot(1.0, 1.5, robots))
    return model


CASES = {
    "resistive": (rods, lambda a: forces.Resistive(a(0.1, 0.2), a(0.5, 0.9)), ("tangential", "normal")),
    "quadratic": (rods, lambda a: forces.QuadraticResistive(a(0.1, 0.2), a(1.0, 1.5), a(100, 200)), ("density",)),
    "present lengths": (
        rods,
        lambda a: forces.QuadraticResistive(a(0.1, 0.2), 1.2, 1000.0, length="current"),
        ("tangential", "normal"),
    ),
    "drag": (lambda force, robots: plates(force), lambda a: forces.Drag(a(100, 200), 1.2), ("density", "coefficient")),
    "pressure": (lambda force, robots: plates(force), lambda a: forces.Pressure(a(10, 20)), ("pressure",)),
}


def case(name, robots):
    """Return a force, the tensors of it that may be trained, and a state in which all but the first robot move."""
    make, force_of, names = CASES[name]
    force = force_of(lambda low, high: per_robot(low, high, robots))
    model = make(force, robots)
    generator = torch.Generator().manual_seed(robots)
    noise = torch.randn(2, robots, model.n_dofs, dtype=torch.float64, generator=generator)
    noise[1, : robots // 2] = 0  # at rest the size of a velocity has no slope
    state = model.initial_state(batch=robots)
    trained = [getattr(force, name) for name in names]
    sizes = [model.body.edge_length] if make is rods else [model.body.face_area]
    return force, [*trained, *sizes], state.replace(q=state.q + 2e-3 * noise[0], velocity=noise[1])


def all_of(force, state):
    """Return the force and its derivatives, those that are there."""
    total, derivatives = force.with_derivatives(state, None)
    return [total, *(part for both in derivatives for part in both if part is not None)]


def assert_close(found, expected, within):
    """Compare tensors by the largest number of each."""
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and (a - b).abs().max() <= within * b.abs().max()


@pytest.fixture
def by_torch(monkeypatch):
    """Return what calls a function without loops."""

    def called(function, *given):
        with monkeypatch.context() as patch:
            patch.setattr(Fused, "program", lambda fused, tensors: None)
            return function(*given)

    return called


@pytest.fixture
def _compiled():
    """Skip where compiled code cannot be had."""
    try:
        library()
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("robots", [1, 3, 40])
@pytest.mark.parametrize("name", CASES)
def test_loops_find_what_torch_finds(name, robots, dtype, by_torch):
    """Agree in the force and its derivatives, with constants of each robot and of all, found at once and one by one."""
    force, _, state = case(name, robots)
    force, state = force.to(dtype), state.to(dtype)
    with torch.no_grad():
        found = all_of(force, state)
        assert_close(found, by_torch(all_of, force, state), ROUNDING[dtype])
        alone = [force(state, None), *(x for both in force.derivatives(state, None) for x in both if x is not None)]
    assert_close(found, alone, ROUNDING[dtype])


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("robots", [1, 9])
@pytest.mark.parametrize("name", CASES)
def test_a_recording_calls_no_torch(name, robots):
    """Replay the force and its derivatives by one call of compiled code, for other numbers to the bit."""
    force, _, state = case(name, robots)
    tape = recorded(lambda: all_of(force, state), torch.device("cpu"), None)
    assert len(tape.work) == 1 and not tape.calls_torch
    state.velocity.mul_(0.5)
    with torch.no_grad():
        assert all(torch.equal(a, b) for a, b in zip(tape.replay(), all_of(force, state), strict=True))


@pytest.mark.parametrize("robots", [1, 9])
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_loops(name, robots, by_torch):
    """Agree with autograd's through torch's operations: by q, velocity, coefficients and sizes."""
    force, constants, state = case(name, robots)
    q, velocity = state.q.clone().requires_grad_(), state.velocity.clone().requires_grad_()
    leaves = [q, velocity, *(constant.requires_grad_() for constant in constants)]
    weights = torch.linspace(-1, 2, q.numel(), dtype=q.dtype).view_as(q)

    def gradients():
        with differentiated():
            total = force(state.replace(q=q, velocity=velocity), None)
        return torch.autograd.grad((total * weights).sum(), leaves, allow_unused=True, materialize_grads=True)

    expected = by_torch(gradients)
    for found, wanted in zip(gradients(), expected, strict=True):
        # sums over robots and elements of numbers that cancel
        assert (found - wanted).abs().max() <= 1e-12 * wanted.abs().max()


@pytest.mark.parametrize("robots", [1, 9])
def test_coefficients_of_each_element(robots):
    """Give each node the force that its own coefficient gives it as the coefficient of all."""
    force, _, state = case("resistive", robots)
    count = state.n_nodes
    for shape in ((count,), (1, count), (robots, count)):
        own = torch.linspace(0.1, 0.4, count, dtype=torch.float64).expand(shape)
        force.tangential = torch.nn.Parameter(own, requires_grad=False)
        found = force(state, None)
        for node in (0, 3, count - 1):
            force.tangential = torch.nn.Parameter(own[..., node].reshape(-1)[0], requires_grad=False)
            alone = force(state, None)
            assert torch.equal(found[:, 3 * node : 3 * node + 3], alone[:, 3 * node : 3 * node + 3])


def test_transforms_of_torch_go_through(by_torch):
    """Let torch differentiate forces forwards and many at once, which no loop can."""
    force, _, state = case("resistive", 1)

    def at(q):
        return force(state.replace(q=q[None]), None)[0]

    directions = torch.eye(state.q.shape[1], dtype=torch.float64)[:4]
    along = torch.func.vmap(lambda d: torch.func.jvp(at, (state.q[0],), (d,))[1])(directions)
    assert (along - torch.func.jacrev(at)(state.q[0])[:, :4].t()).abs().max() <= 1e-12 * along.abs().max()


def test_what_a_subclass_writes_counts():
    """Ask a force of one's own for what it overrides, also where force and derivatives are found at once."""

    class Halved(forces.Resistive):
        def forward(self, state, control):
            return 0.5 * super().forward(state, control)

        def derivatives(self, state, control):
            return [
                tuple(None if part is None else 0.5 * part for part in both)
                for both in super().derivatives(state, control)
            ]

    made = Halved(0.1, 0.5)
    model = rods_on_cpu(1, made)
    state = model.initial_state()
    state = state.replace(velocity=torch.ones_like(state.velocity))
    with torch.no_grad():
        halved, _ = made.with_derivatives(state, None)
        assert torch.equal(halved, 0.5 * ElementForce.forward(made, state, None))


def test_numbers_of_another_dtype_are_left_to_torch():
    """Find a common dtype as torch does, where state and coefficients differ."""
    force, _, state = case("resistive", 3)
    low = state.replace(velocity=state.velocity.float())
    with torch.no_grad():
        found, expected = force(low, None), force(state.replace(velocity=low.velocity.double()), None)
    assert (found - expected).abs().max() <= ROUNDING[torch.float64] * expected.abs().max()
