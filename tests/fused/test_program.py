"""Functions recorded from Python and compiled as one loop: the same numbers as torch's, for any number of robots."""

import copy
import math

import pytest
import torch

from torchdismech import InputError
from torchdismech.fused import Fused, Unfusable, loop, making, program_of, values_of
from torchdismech.fused import function as functions

BATCHES = [1, 3, 8, 13]  # fewer robots than a vector has lanes, as many, and more
DTYPES = {torch.float64: 4e-16, torch.float32: 2.5e-7}  # two units in the last place


def evaluated(function, leaves, springs, robots):
    """Return the values (springs, B) that the compiled function finds."""
    dtype = leaves[0].dtype
    program = program_of(lambda given: (function(*given), []), [tuple(leaf.shape) for leaf in leaves], dtype)
    count = len(function(*leaves))
    first, second = torch.full((count * springs, robots), torch.nan, dtype=dtype), torch.empty(0, robots, dtype=dtype)
    program.write(springs, [leaves[place] for place in program.places], first, second)
    return first.unflatten(0, (count, springs)).unbind(0)


def random(*shape, dtype=torch.float64, low=-3.0, high=3.0):
    """Return numbers of a fixed sequence."""
    generator = torch.Generator().manual_seed(7)
    return (low + (high - low) * torch.rand(*shape, generator=generator, dtype=torch.float64)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("robots", BATCHES)
def test_arithmetic_is_torchs(robots, dtype):
    """Find what torch finds, of tensors that broadcast in all the ways that springs' constants do."""
    leaves = [
        random(5, robots, dtype=dtype),
        random(5, 1, dtype=dtype),
        random(1, robots, dtype=dtype),
        random(robots, 5, dtype=dtype),
        random(3, 5, robots, dtype=dtype, low=0.5),
        torch.tensor(0.7, dtype=dtype),
    ]

    def function(a, b, c, d, vectors, number):
        x, y, z = vectors.unbind(0)
        return [
            a + b * c - d.t() / number,
            (x * a + y) / torch.sqrt(z),
            -(a**3) + 2 * b - 1.5 / vectors[1],
            torch.maximum(a, b) - torch.minimum(a, c) + torch.abs(d.t()),
            torch.zeros_like(a * b) + torch.ones_like(a) * number * a,
        ]

    for found, expected in zip(evaluated(function, leaves, 5, robots), function(*leaves), strict=True):
        # some roundings of numbers up to 20: products and sums may be fused
        torch.testing.assert_close(found, expected.expand(5, robots), rtol=0, atol=100 * DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_are_right_in_the_last_places(dtype):
    """Differ from exact sines, cosines, angles and roots by two units in the last place of one, at most."""
    near = random(40, 50, dtype=dtype, low=-10.0, high=10.0)
    far = random(40, 50, dtype=dtype, low=-900.0, high=900.0)
    across = random(40, 50, dtype=dtype).t().contiguous().t()
    exact = [x.double() for x in (near, far, across)]

    def function(a, b, c):
        return [torch.sin(a), torch.cos(a), torch.sin(b), torch.cos(b), torch.atan2(a, c), torch.sqrt(a * a)]

    for found, expected in zip(evaluated(function, [near, far, across], 40, 50), function(*exact), strict=True):
        error = (found.double() - expected).abs() / expected.abs().clamp_min(1)
        assert float(error.max()) < DTYPES[dtype]


def test_angles_in_all_quadrants_and_on_the_axes():
    """Return torch's angles on axes and diagonals, with either zero, and NaN for NaN; sines of what is huge, too."""
    values = [0.0, -0.0, 1.0, -1.0, 1e-300, -1e300, math.nan]
    y, x = torch.meshgrid(
        torch.tensor(values, dtype=torch.float64), torch.tensor(values, dtype=torch.float64), indexing="ij"
    )
    (found,) = evaluated(lambda a, b: [torch.atan2(a, b)], [y.contiguous(), x.contiguous()], 7, 7)
    torch.testing.assert_close(found, torch.atan2(y, x), rtol=0, atol=5e-16, equal_nan=True)
    assert bool((torch.signbit(found) == torch.signbit(torch.atan2(y, x)))[:6, :6].all())
    large = torch.tensor([[1e7, -3e12, math.inf, math.nan]], dtype=torch.float64)
    for found, expected in zip(
        evaluated(lambda a: [torch.sin(a), torch.cos(a)], [large], 1, 4), (large.sin(), large.cos()), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=4e-16, equal_nan=True)


def test_rounding_to_whole_numbers():
    """Round halves to even numbers, and leave numbers that have no digits behind the point."""
    given = torch.tensor([[0.5, 1.5, -2.5, 0.49999999999999994, 3.7, -1e17, 4503599627370497.0]], dtype=torch.float64)
    (found,) = evaluated(lambda a: [torch.round(a)], [given], 1, 7)
    assert found.tolist() == torch.round(given).tolist()


@pytest.mark.parametrize("robots", BATCHES)
def test_springs_read_rows_of_a_matrix(robots):
    """Read the row that an index says, as often as it says so, through any strides."""
    q, rows = random(robots, 6).t(), torch.tensor([5, 0, 0, 2])
    (found,) = evaluated(lambda q, rows: [q[rows] * 2], [q, rows], 4, robots)
    assert torch.equal(found, 2 * q[rows])


def test_a_robot_is_the_same_wherever_it_stands():
    """Find the same bits for a robot alone, in a batch, and in another place of it."""
    leaves = [random(9, 21), random(9, 21, low=0.1)]

    def function(a, b):
        return [torch.sin(a) * torch.atan2(a, b) / torch.sqrt(b) + torch.cos(b - a)]

    (whole,) = evaluated(function, leaves, 9, 21)
    for robots in ([4], [20, 4, 1], list(range(1, 20))):
        (part,) = evaluated(function, [leaf[:, robots].contiguous() for leaf in leaves], 9, len(robots))
        assert torch.equal(part, whole[:, robots])


def test_threads_find_the_same(monkeypatch):
    """Give each thread some of the springs."""
    leaves = [random(9, 21)]
    (alone,) = evaluated(lambda a: [torch.sin(a)], leaves, 9, 21)
    monkeypatch.setattr(loop, "OPERATIONS_A_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    (together,) = evaluated(lambda a: [torch.sin(a)], leaves, 9, 21)
    assert torch.equal(alone, together)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda a: [a * torch.ones(3)], "an operation with a Tensor"),
        (lambda a: [torch.linalg.norm(a)], "norm"),
        (lambda a: [a if a else -a], "decision by the value"),
        (lambda a: [a**0.5], "a power of 0.5"),
        (lambda a: [a[:2] * 1], "the index slice"),
        (lambda a: [1.0], "a result that is a float"),
        (lambda a: [a.flatten()], "the attribute flatten of a tensor"),
        (lambda a: [torch.where((a > 0).flatten(), a, 0.0)], "the attribute flatten of a condition"),
        (lambda a: [a * float(a)], "float"),
    ],
)
def test_what_is_not_elementwise_is_refused(function, message):
    """Say what cannot be recorded."""
    with pytest.raises(Unfusable, match=message):
        program_of(lambda given: (function(*given), []), [(4, 2)], torch.float64)


def test_mistakes_are_told():
    """Let through what is wrong with a function itself, instead of leaving it to torch without a word."""
    with pytest.raises(AttributeError, match="NoneType"):
        program_of(lambda given: ([None.gap], []), [(4, 2)], torch.float64)


def test_constants_that_do_not_fit_are_refused():
    """Read no memory beyond a tensor."""
    program = program_of(lambda given: ([given[0] * given[1]], []), [(4, 2), (4, 2)], torch.float64)
    out, none = torch.empty(4, 2, dtype=torch.float64), torch.empty(0, 2, dtype=torch.float64)
    for wrong, what in ((random(3, 2), "3 springs does not fit 4"), (random(4, 3), "3 robots does not fit 2")):
        with pytest.raises(InputError, match=what):
            program.write(4, [random(4, 2), wrong], out, none)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_choices_are_torchs(dtype):
    """Choose as torch does by comparisons and what they are joined to, NaN, zeros and infinities among them."""
    values = torch.tensor([-torch.inf, -2.0, -0.0, 0.0, 1.0, 2.0, torch.inf, torch.nan], dtype=dtype)
    a, b = (x.contiguous() for x in torch.meshgrid(values, values, indexing="ij"))

    def function(a, b):
        one, zero = torch.ones_like(a), torch.zeros_like(a)
        conditions = [a < b, a <= b, a > b, a >= b, a == b, ~(a < b), (a < b) & (b > 0), (a == 1) | (b == 1.0)]
        return [torch.where(c, one, zero) for c in conditions] + [
            torch.where(a < b, a, -torch.inf),
            torch.where(b > a, 3.0, b),
            a.clamp(-1, 1),
            torch.full_like(a, torch.inf),
        ]

    for found, expected in zip(evaluated(function, [a, b], 8, 8), function(a, b), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_of_contacts_are_torchs(dtype):
    """Find exponentials, logarithms and what is made of them to a few units in the last place."""
    a, b = random(30, 7, dtype=dtype, low=-60.0, high=60.0), random(30, 7, dtype=dtype, low=1e-3)

    def function(a, b):
        softplus = torch.nn.functional.softplus(a, 1.0, 40.0)
        return [torch.exp(a / 8), torch.expm1(a / 8), torch.log(b), torch.tanh(a / 9), torch.sigmoid(a), softplus]

    for found, expected in zip(evaluated(function, [a, b], 30, 7), function(a, b), strict=True):
        torch.testing.assert_close(found, expected, rtol=4 * DTYPES[dtype], atol=DTYPES[dtype])


def test_functions_run_as_loops_or_by_torch(monkeypatch):
    """Give the same values where compiled code may be, under autograd, and of what is not to be compiled."""
    taken = []
    monkeypatch.setattr(functions, "values_of", lambda *given: taken.append(1) or values_of(*given))
    product = Fused(lambda a, b: [a * b, a - b], "products")
    a, b = random(4, 3), random(4, 1)
    expected = torch.stack([a * b, a - b])
    assert torch.equal(product(4, a, b), expected) and len(taken) == 1
    assert torch.equal(product(4, a, torch.nn.Parameter(b, requires_grad=False)), expected) and len(taken) == 2
    assert torch.equal(product(4, a.requires_grad_(), b), expected) and len(taken) == 2
    summed = Fused(lambda a: [a + torch.flip(a, (0,))], "sums", compiles=False)
    assert torch.equal(summed(4, a.detach()), (a + torch.flip(a, (0,)))[None]) and len(taken) == 2
    with pytest.raises(Unfusable, match="flip"):
        Fused(summed.function, "sums")(4, a.detach())


@pytest.mark.parametrize("count", [0, 1, 5, 8, 21])
def test_columns_stand_alone(count):
    """Take matrices a column at a time, with numbers that all columns share."""
    x, number = random(3, count), torch.tensor(0.3, dtype=torch.float64)
    lengths = Fused(lambda x, number: [x[0] * x[1] + number, x[2] - number], "lengths")
    found = lengths.of_columns(x, number)
    torch.testing.assert_close(found, torch.stack([x[0] * x[1] + 0.3, x[2] - 0.3]), rtol=0, atol=1e-15)
    assert torch.equal(found[:, count // 2 :], lengths.of_columns(x[:, count // 2 :], number))
    assert torch.equal(copy.deepcopy(lengths).of_columns(x, number), found)


def test_code_that_fails_is_told(monkeypatch):
    """Warn that torch evaluates what does not compile, where a compiler is at hand."""
    monkeypatch.setattr(making, "loop_source", lambda *given: "this is no code")
    with pytest.warns(RuntimeWarning, match="halves: torch evaluates it"):
        found = Fused(lambda a: [a * 0.5], "halves")(2, random(2, 3))
    assert torch.equal(found[0], random(2, 3) * 0.5)


def test_constants_may_be_no_numbers():
    """Compile NaN and infinity: NaN was no code for the compiler, and torch evaluated what had it, with a warning."""
    chosen = Fused(lambda a: [torch.where(a > 0, a, math.nan), torch.maximum(a, torch.full_like(a, -math.inf))], "ends")
    a = random(4, 3)
    assert chosen.program([a]) is not None
    expected = torch.stack([torch.where(a > 0, a, math.nan), a])
    torch.testing.assert_close(chosen(4, a), expected, rtol=0, atol=0, equal_nan=True)


def test_types_do_not_share_programs():
    """Find numbers of the type that is asked for, also where the text of a program does not say it."""
    shapes = [(2, 3)]
    made = [program_of(lambda given: ([given[0] * given[0]], []), shapes, dtype) for dtype in DTYPES]
    assert [program.dtype for program in made] == list(DTYPES)


def test_constants_alone_are_no_program():
    """Leave to torch what reads no tensor: nothing says where it would be written."""
    with pytest.raises(Unfusable, match="reads no tensor"):
        program_of(lambda given: ([torch.zeros_like(given[0])], []), [(2, 3)], torch.float64)


def weighted_rows(weights, rows, x):
    """Return the sum of some rows of a matrix, as a list of one value."""
    return [sum((x[row] * weight for row, weight in zip(rows, weights, strict=True)), 0 * x)]


def test_numbers_of_components_do_not_share_programs():
    """Sum as many components as there are, by one function: a program for fewer would read beside the memory."""
    total = Fused(
        lambda parts, rows, x: [sum((x[row] * part for row, part in zip(rows, parts, strict=True)), 0 * x)], ""
    )
    x = torch.tensor([[1.0], [10.0], [100.0]], dtype=torch.float64)
    for count in (1, 3, 2, 3, 0):
        rows = torch.arange(count).unsqueeze(1).expand(count, 3)
        found = total(3, torch.ones(count, 3, 1, dtype=torch.float64), rows, x)
        assert found[0].flatten().tolist() == [float(x[:count].sum())] * 3
