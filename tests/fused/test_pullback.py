"""Derivatives of recorded functions, as one more loop: those that autograd finds through torch's operations."""

import contextlib

import pytest
import torch

from tests.fused.test_program import random
from tests.shells import robot
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    RobotBuilder,
    forces,
    straight,
    trainable,
    unroll,
)
from torchdismech.fused import Fused, differentiated, program_of, pullback, values_of
from torchdismech.integrate.gradients import gradient

SPRINGS = 5
STIFFNESSES = (".EA", ".EI1", ".EI2", ".GJ", ".rest_length", ".membrane", ".hinge", ".stiffness", ".poisson")
ROUNDING = 1e-14  # sums of some tens of products of numbers up to 10


def by_loops(function, leaves, springs, robots):
    """Return the values (k springs, B) of a recorded function, which can be differentiated."""
    program = program_of(lambda given: (function(*given), []), [tuple(leaf.shape) for leaf in leaves], leaves[0].dtype)
    return values_of([(program, springs, [leaves[place] for place in program.places])], robots)[0]


def same_gradients(function, leaves, robots, springs=SPRINGS):
    """Hold the gradients of a weighted sum of the function's values against autograd's."""
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    values = torch.cat([value.expand(springs, robots) for value in function(*leaves)])
    found = by_loops(function, leaves, springs, robots)
    weights = random(*values.shape)
    pairs = zip(*(torch.autograd.grad((v * weights).sum(), wanted) for v in (found, values)), strict=True)
    for ours, torchs in pairs:
        assert (ours - torchs).abs().max() < ROUNDING * robots * springs * (1 + torchs.abs().max())


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: [a + b, a - b, 2 - a, -b],
        lambda a, b: [a * b, a / b, 1.5 / b, a**3],
        lambda a, b: [torch.sqrt(a * a + b), torch.sin(a) * torch.cos(b), torch.atan2(a, b)],
        lambda a, b: [torch.exp(-a), torch.log(b), torch.tanh(a), torch.sigmoid(a)],
        lambda a, b: [torch.abs(a), torch.maximum(a, b), torch.minimum(a, b), torch.round(a) * b],
        lambda a, b: [torch.where((a < b) & ~(b < 1), a * b, b), torch.where((a < 0) | (b <= 1), 0.0, a)],
        lambda a, b: [a.clamp(-0.5, 0.5), torch.nn.functional.softplus(a, 1, 0.5), torch.zeros_like(a) + b],
    ],
)
@pytest.mark.parametrize("robots", [1, 3, 13])
def test_every_operation(function, robots):
    """Give autograd's derivatives, for fewer robots than a vector has lanes and for more."""
    a, b = random(SPRINGS, robots).requires_grad_(), random(SPRINGS, robots, low=0.5).requires_grad_()
    same_gradients(function, [a, b], robots)


def test_numbers_on_a_kink():
    """Share what two equal numbers have in the larger one; give all to a number that stands on its bound."""
    x, y = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    same_gradients(lambda a, b: [torch.maximum(a, b)], [x.requires_grad_(), y.requires_grad_()], 1, springs=1)
    same_gradients(lambda a, b: [a.clamp(0.0, 1.0) * b, torch.abs(a - b)], [x, y], 1, springs=1)


@pytest.mark.parametrize("robots", [1, 3, 13])
def test_all_ways_to_read(robots):
    """Sum over the springs and robots that share a number: columns, rows, numbers, parts, rows of a matrix by index."""
    leaves = [
        random(20, robots),
        random(SPRINGS, 1),
        random(1, robots),
        random(robots, SPRINGS),
        random(3, SPRINGS, robots),
        random(1, 1),
        random(4, SPRINGS, 1),
        torch.tensor(0.7, dtype=torch.float64),
    ]
    rows = torch.randint(0, 20, (2, SPRINGS), generator=torch.Generator().manual_seed(3))

    def function(q, column, row, turned, parts, one, some, number, index):
        x, y = q[index[0]], q[index[1]]
        return [
            x * column + y * row,
            parts[0] * turned.t() + parts[2] * number,
            one * x + some[3] * y - some[0],
        ]

    same_gradients(function, [*(leaf.requires_grad_() for leaf in leaves), rows], robots)


def test_no_spring_at_all():
    """Give zeros where no spring is there, also by a number that all springs share: a contact near nothing."""
    robots = 3
    leaves = [random(0, robots), random(1, 1), torch.tensor(0.7, dtype=torch.float64), random(4, 0, 1)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    found = by_loops(lambda x, one, number, some: [x * one * number + some[1]], leaves, 0, robots)
    for gradient_of, leaf in zip(torch.autograd.grad(found.sum(), leaves), leaves, strict=True):
        assert gradient_of.shape == leaf.shape and not gradient_of.any()


def test_only_what_is_asked_for():
    """Leave out tensors that no gradient is wanted by, also where the values do not depend on one that is."""
    a, b = random(SPRINGS, 3).requires_grad_(), random(SPRINGS, 3)
    same_gradients(lambda x, y: [x * y, y], [a, b], 3)
    found = by_loops(lambda x, y: [torch.round(x) * y], [a, b], SPRINGS, 3)
    (gradient_of,) = torch.autograd.grad(found.sum(), [a], allow_unused=True)
    assert gradient_of is None or not gradient_of.any()


def test_first_tensor_of_some_springs():
    """Find the gradient by the first tensor, which springs read by rows, of some springs; by others of all."""
    robots, some = 9, torch.tensor([0, 3])
    rows = torch.tensor([2, 0, 1, 1, 3])
    a, b = random(4, robots).requires_grad_(), random(2, SPRINGS, robots).requires_grad_()
    c = random(SPRINGS, 1).requires_grad_()

    def function(x, parts, each, row):
        return [x[row] * parts[0] * each, torch.sin(x[row]) + parts[1]]

    leaves = [a, b, c, rows]
    program = program_of(lambda given: (function(*given), []), [tuple(leaf.shape) for leaf in leaves], a.dtype)
    values, _ = values_of([(program, SPRINGS, [leaves[place] for place in program.places])], robots, [some])
    weights = random(*values.shape)
    found = torch.autograd.grad((values * weights).sum(), [a, b, c])
    products = torch.cat(function(*leaves)) * weights
    of_some = products.view(2, SPRINGS, robots)[:, some].sum()
    expected = [
        *torch.autograd.grad(of_some, a, retain_graph=True),
        *torch.autograd.grad(products.sum(), [b, c]),
    ]
    for ours, torchs in zip(found, expected, strict=True):
        assert (ours - torchs).abs().max() < ROUNDING * SPRINGS * robots
    values, _ = values_of([(program, SPRINGS, [leaves[place] for place in program.places])], robots, [some[:0]])
    assert not torch.autograd.grad(values.sum(), a)[0].any()


def test_second_list_is_not_differentiated():
    """Say of the second list that it does not depend on what requires gradients."""
    a = random(SPRINGS, 3).requires_grad_()
    program = program_of(lambda given: ([given[0] ** 2], [given[0] ** 3]), [(SPRINGS, 3)], torch.float64)
    first, second = values_of([(program, SPRINGS, [a])], 3)
    assert first.requires_grad and not second.requires_grad


def test_functions_are_loops_while_differentiated():
    """Give the same values and gradients as torch, which evaluates what requires gradients elsewhere."""
    square, x = Fused(lambda a: [torch.sin(a) * a], "square"), random(SPRINGS, 3).requires_grad_()
    outside = square(SPRINGS, x)
    with differentiated():
        inside = square(SPRINGS, x)
    assert "Differentiable" in str(inside.grad_fn.next_functions) and "Differentiable" not in str(outside.grad_fn)
    found, expected = (torch.autograd.grad(y.sum(), x)[0] for y in (inside, outside))
    assert (found - expected).abs().max() < ROUNDING
    with pytest.raises(RuntimeError, match="differentiated once"), differentiated():
        torch.autograd.grad(square(SPRINGS, x).sum(), x, create_graph=True)


@pytest.mark.parametrize("integrator", [ImplicitEuler, Newmark])
@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ("hinge_rod", {}),
        ("hinge_rod", {"relaxation_time": 0.05}),
        ("midedge_rod", {}),
        ("midedge", {"membrane": "continuum"}),
    ],
)
def test_steps_have_the_same_gradients(shape, more, integrator, monkeypatch):
    """Find the gradients of some steps by state, natural strains and stiffness, with loops and without."""
    model = robot(shape, [forces.Gravity((0, 0, -9.81))], **more)
    start = model.initial_state()
    factors = trainable.scaled(model, [name for name in trainable.constants(model) if name.endswith(STIFFNESSES)])
    start = start.replace(q=start.q.clone().requires_grad_(), velocity=(0.01 * random(*start.q.shape)).requires_grad_())
    same_gradients_of_steps(
        model, start, integrator(2e-3), [start.q, start.velocity, *factors.parameters()], monkeypatch
    )


@pytest.mark.parametrize("integrator", [ImplicitEuler, ImplicitMidpoint])
@pytest.mark.parametrize("along", [None, (1.0, 1.0, 1.0)])
def test_where_robots_are_held(along, integrator, monkeypatch):
    """Find the gradients by where clamps hold a rod, also a node that slides, and by q before the step."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0.1), 7), Circle(2e-3), Material(youngs=1e6, density=1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.clamp(nodes=[6], along=along)
    builder.add_force(forces.Gravity((0, 1.0, -9.81)))
    model = builder.finalize(compile=False)
    start = model.initial_state(2)
    start = start.replace(q=start.q.clone().requires_grad_(), velocity=(0.01 * random(*start.q.shape)).requires_grad_())
    held = (start.q + 1e-4 * random(*start.q.shape)).detach().requires_grad_()
    wanted = [start.q, start.velocity, held]
    same_gradients_of_steps(model, start, integrator(2e-3), wanted, monkeypatch, Control(clamped_q=held))


def same_gradients_of_steps(model, start, integrator, wanted, monkeypatch, control=None):
    """Hold the gradients of some steps by loops against those that torch finds."""
    held = None if control is None else (lambda time, model: control)

    def gradients():
        run = unroll(model, start, integrator, 4, schedule=held)
        return torch.autograd.grad((run.positions[-1] ** 2).sum() + run.velocity[-1].sum(), wanted)

    monkeypatch.setattr(pullback, "_pullbacks", {})
    found = gradients()
    assert len(pullback._pullbacks) > 2  # of the terms and of the frames
    monkeypatch.setattr(gradient, "differentiated", contextlib.nullcontext)
    for ours, expected in zip(found, gradients(), strict=True):
        # two evaluations of one formula, through matrices of condition up to 1e6
        assert (ours - expected).abs().max() < 1e-9 * expected.abs().max()
