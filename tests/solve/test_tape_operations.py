"""Operations on tapes that compiled code does in the place of torch."""

import pytest
import torch

from torchdismech.native.graphs import recorded

CPU = torch.device("cpu")

X = torch.tensor([[-1.5, 0.0, torch.nan], [2.0, -0.0, torch.inf]], dtype=torch.float64)
OTHER = torch.tensor([[2.0, -3.0, 1.0], [2.0, 5.0, torch.nan]], dtype=torch.float64)
WHOLE = torch.tensor([[3, -2, 1], [0, 5, 2]])
TRUE = torch.tensor([[True, False, True], [False, True, True]])
PLACES, ORDER = torch.tensor([2, 0, -1]), torch.tensor([2, 0, 1])
LONG = torch.linspace(-3.0, 3.0, 160, dtype=torch.float64).reshape(4, 40)
# places in three runs, one of them backwards of the others, and in more runs than are copied as such
FEW_RUNS = torch.cat([torch.arange(30, 40), torch.arange(3, 9), torch.arange(20, 21)])
MANY_RUNS = torch.arange(17) * 7 % 40
# numbers of which operations read those together that lie together: eight lines of doubles, sixteen of others
CROSSWISE = torch.sin(torch.arange(3.0 * 150 * 37, dtype=torch.float64)).reshape(3, 150, 37)

TABLED = {
    **{
        f"{name} of {kind}": (lambda a, b, name=name: getattr(torch, name)(a, b), a, b)
        for name in ("add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge")
        for kind, a, b in (
            ("numbers", X, OTHER),
            ("short numbers", X.float(), OTHER.float()),
            ("columns", X.t(), OTHER[0, :, None]),
            ("integers", WHOLE, WHOLE.flip(0)),
            ("both", X, WHOLE),
        )
        if (name, kind) != ("div", "integers")
    },
    "neg": (torch.neg, X),
    "abs": (torch.abs, X),
    "reciprocal": (torch.reciprocal, X),
    "not": (torch.logical_not, TRUE),
    "scaled": (lambda x: 2 * x - 1, X),
    "compared with a number": (lambda x: (x > 0) | (x == -1.5), X),
    "squared": (lambda x: x**2, X),
    "clamped": (lambda x: x.clamp_min(0.5), X),
    "and, or": (lambda a, b: a & (b | ~a), TRUE, TRUE.flip(1)),
    "chosen": (lambda c, a, b: torch.where(c, a, b), TRUE, X, OTHER[:1]),
    "chosen or a number": (lambda c, a: torch.where(c, a, 0.0), TRUE, X),
    "rows": (lambda x: x.index_select(1, ORDER), X),
    "indexed": (lambda x: x[:, PLACES], X),
    "indexed from the end": (lambda x: x.t()[PLACES], X),
    "put": (lambda x, y: x.t().index_put((ORDER,), y[:, 0]), X, OTHER),
    "copied to": (lambda x, y: x.index_copy(1, ORDER, y), X, OTHER),
    "added to": (lambda x, y: x.index_add(1, ORDER, y), X, OTHER),
    "added to rows, some of them twice": (
        lambda x, y: x.index_add(0, torch.tensor([1, 1, 0]), y.t()[:, :3]),
        X[:, :2],
        OTHER,
    ),
    "one number added to each row": (
        lambda x, y: x.index_add(0, torch.tensor([1, 1, 0]), y.t()[:3, :1].expand(3, 3)),
        X[:, :3],
        OTHER,
    ),
    "columns added to rows": (
        lambda x, y: x.index_add(0, torch.tensor([1, 0, 1]), y[:, :3].t().expand(3, 2)),
        X[:, :2],
        OTHER,
    ),
    "added to one after the other": (lambda x, y: x[0].index_add(0, torch.tensor([1, 1, 0]), y[0]), X, OTHER),
    **{
        f"{what} {name}": (lambda x, code=code, places=places: code(x, places), LONG)
        for name, places in (("few runs", FEW_RUNS), ("many runs", MANY_RUNS), ("runs twice", FEW_RUNS.repeat(2)))
        for what, code in (
            ("gathered from", lambda x, places: x.index_select(1, places)),
            ("gathered from columns of", lambda x, places: x.t().contiguous().t().index_select(1, places)),
            ("copied to", lambda x, places: (-x).index_copy(1, places, x.index_select(1, places))),
            ("added to", lambda x, places: x.index_add(1, places, x[:, 0 : len(places)])),
            ("added to columns of", lambda x, places: x.t().index_add(0, places, x.t()[: len(places)])),
        )
    },
    **{
        f"{name} at places, some of them twice, of {what}": (
            lambda x, y, name=name: x.scatter_reduce(0, torch.tensor([1, 1, 0]), y, name),
            first,
            second,
        )
        for name in ("amax", "amin")
        for what, first, second in (
            ("numbers", X[0], OTHER[0]),
            ("whole numbers", WHOLE[0], WHOLE[1]),
            ("numbers one of which is largest", X[0], X[1]),
            ("numbers one apart", X[0, ::2], OTHER.t()[:, 0]),
            ("numbers, with the first of many", X[0], LONG[0]),
        )
    },
    "added to whole numbers": (lambda x, y: x.clone().index_add_(1, ORDER, y), WHOLE, WHOLE.flip(0)),
    "filled at places": (lambda x: x.index_fill(1, ORDER[:2], 3.0), X),
    "of a slice": (lambda x: torch.ops.aten.slice_backward(x[:, :2], [2, 5], 1, 1, 5, 2), X),
    "of a part": (lambda x: torch.ops.aten.select_backward(x[0], [2, 3], 0, 1), X),
    "joined": (lambda x, y: torch.cat([x, y[:, :1]], 1), X, OTHER),
    "stacked": (lambda x, y: torch.stack([x, y], 2), X, OTHER),
    "largest": (lambda x: x.amax(1), X),
    "largest of all": (lambda x: x[:, :2].amax((0, 1), keepdim=True), X),
    "sum of few": (lambda x: x.sum(1, keepdim=True) + x[:, :2].sum(1, keepdim=True), X),
    "sum of few columns": (lambda x: x.t().sum(0), X),
    "sum of zeros": (lambda x: 1 / x.sum(1), torch.tensor([[-0.0, -0.0], [0.0, -0.0]])),
    "sum of whole numbers": (lambda x: x.sum(1) + x.sum(), WHOLE),
    "counted": (lambda c: c.sum(1) + c.sum(), TRUE),
    "smallest": (lambda x: x.amin(0), X),
    "any, all": (lambda c: torch.stack([c.any(1), c.all(1)]), TRUE),
    "as other numbers": (lambda x: x.to(torch.float32), X),
    "as truths": (lambda x: x.to(torch.bool), WHOLE),
    "of truths": (lambda c: c.to(torch.float64) + c.long(), TRUE),
    "in place": (lambda x, y: x.clone().add_(y).mul_(2).copy_(x + y).t(), X, OTHER),
    "copied without waiting": (lambda x, y: x.clone().copy_(y, True), X, OTHER),
    "filled": (lambda x: torch.cat([x.clone().fill_(3.0), x.clone().zero_()]), X),
    "put in place": (lambda x, y: torch.where(y > 0, x, y, out=torch.empty_like(x)), X, OTHER),
    **{
        f"{name}, {dtype}": (code, CROSSWISE.to(dtype))
        for dtype in (torch.float64, torch.float32)
        for name, code in (
            ("turned", lambda x: x.mT.clone(memory_format=torch.contiguous_format)),
            ("in parts turned", lambda x: x[:, 1:, :35].mT.clone(memory_format=torch.contiguous_format)),
            ("added to what is turned", lambda x: torch.add(x.mT.abs(), x.mT, out=x.new_empty(3, 37, 150))),
            ("of what is turned chosen", lambda x: torch.where((x > 0).mT.contiguous(), x.mT, 0.0).contiguous()),
            (
                "chosen where numbers far apart say",
                lambda x: torch.where(x[..., None].expand(3, 150, 37, 8).gt(0)[..., 0].mT, x.mT.contiguous(), 0.0),
            ),
            ("robots first", lambda x: x.permute(2, 1, 0).clone(memory_format=torch.contiguous_format)),
            ("components first", lambda x: x.permute(2, 0, 1).clone(memory_format=torch.contiguous_format)),
            ("largest of columns", lambda x: x.mT.amax(2) - x.permute(2, 1, 0).amax(2)[0, :3, None]),
            ("rows of what is turned", lambda x: x[0].t().index_select(0, ORDER).contiguous()),
        )
    },
    "in five dimensions": (lambda x: x[:, None, :, None, None].expand(2, 2, 3, 2, 2).permute(4, 2, 0, 3, 1) * 2.0, X),
}


@pytest.mark.parametrize("name", TABLED)
def test_operations_in_the_table(name):
    """Give what torch gives, to the last bit, and call no operation of torch for it."""
    code, *given = TABLED[name]
    tensors = [torch.zeros_like(x) for x in given]
    tape = recorded(lambda: code(*tensors), CPU, None)
    for own, x in zip(tensors, given, strict=True):
        own.copy_(x)
    torch.testing.assert_close(tape.replay(), code(*given), rtol=0, atol=0, equal_nan=True)
    assert len(tape.work) == 1


def with_gradients(code):
    """Return a function of tensors that gives what `code` does and the gradients of its square by them."""

    def pulled_back(*given):
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in given]
            y = code(*leaves)
            return y.detach(), *torch.autograd.grad(y.square().sum(), leaves)

    return pulled_back


NUMBERS = torch.sin(7.0 * torch.arange(24, dtype=torch.float64)).reshape(4, 6)
SIX = torch.linspace(0.5, 2.0, 6, dtype=torch.float64)
MATRIX = NUMBERS[:, :4] @ NUMBERS[:, :4].t() + torch.eye(4, dtype=torch.float64)
F, linalg = torch.nn.functional, torch.linalg

SEVERAL = {
    "running norm": (lambda x, w: F.batch_norm(x, SIX, SIX, w, SIX), NUMBERS, SIX),
    "layer norm": (lambda x, w: F.layer_norm(x, (6,), w, SIX), NUMBERS, SIX),
    "group norm": (lambda x, w: F.group_norm(x, 2, w, SIX), NUMBERS, SIX),
    "convolution": (lambda x, w: F.conv1d(x[None], w.view(3, 1, 2).expand(3, 4, 2)), NUMBERS, SIX),
    "largest, smallest": (lambda x: (x.max(1), x.min(0, keepdim=True)), NUMBERS),
    "only where": (lambda x: x.max(1).indices + 1, NUMBERS),
    "sorted, first": (lambda x: (x.sort(1), x.topk(2, 0), x.kthvalue(2, 1), x.median(1), x.aminmax(dim=0)), NUMBERS),
    "cumulative": (lambda x: (x.cummax(1), x.cummin(0)), NUMBERS),
    "spread": (lambda x: (torch.var_mean(x, 1), torch.std_mean(x, 0)), NUMBERS),
    "eigenvectors": (lambda x: (linalg.eigh(x), linalg.svd(x)), MATRIX),
    "factors": (lambda x: (linalg.qr(x), linalg.lu_factor_ex(x), linalg.slogdet(x)), MATRIX),
    "solved": (lambda x, y: (linalg.solve_ex(x, y), linalg.inv_ex(x), linalg.cholesky_ex(x)), MATRIX, NUMBERS),
    "lists": (lambda x: (*torch.unbind_copy(x), *torch._foreach_mul([x, x.t()], 2.0)), NUMBERS),
    "lists of one": (lambda x: (*torch.split_copy(x, 6, 1), *torch._foreach_mul([x], 2.0)), NUMBERS),
}
for named in ("running norm", "layer norm", "group norm", "convolution"):
    SEVERAL[f"gradients of {named}"] = (with_gradients(SEVERAL[named][0]), *SEVERAL[named][1:])
# what a fixed input leaves out of a backward pass's results
SEVERAL["gradients by weights"] = (with_gradients(lambda w: F.layer_norm(NUMBERS, (6,), w)), SIX)


@pytest.mark.parametrize("name", SEVERAL)
def test_operations_with_several_results(name):
    """Give what torch gives, to the last bit, also where operations leave out some of their results."""
    code, *given = SEVERAL[name]
    tensors = [x.flip(0) for x in given]
    tape = recorded(lambda: code(*tensors), CPU, None)
    for own, x in zip(tensors, given, strict=True):
        own.copy_(x)
    torch.testing.assert_close(tape.replay(), code(*given), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 37), (3, 37), (5, 37, 3), (3, 1, 37), (37, 3, 41)])
def test_sums_of_few_numbers_round_as_torchs(shape, dtype):
    """Add three numbers of very different size in the order in which torch does, however they lie in memory."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=dtype, generator=generator)
    x *= 10 ** (6 * torch.rand(shape, dtype=dtype, generator=generator))
    few = [dim for dim, size in enumerate(shape) if size <= 3]
    layouts = [x, x.transpose(0, -1).contiguous().transpose(0, -1), x.new_zeros(*shape, 2)[..., 0].copy_(x)]
    for given in layouts:
        tape = recorded(lambda given=given: [given.sum(dim) for dim in few], CPU, None)
        assert len(tape.work) == 1
        given.mul_(1.7)
        assert all(torch.equal(a, given.sum(dim)) for a, dim in zip(tape.replay(), few, strict=True))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_largest_and_smallest_of_long_rows(dtype):
    """Find the extreme numbers of rows that fill vectors and of what is left of them; NaN wins wherever it stands."""
    x = torch.sin(torch.arange(6.0 * 151, dtype=dtype)).reshape(6, 151)
    tape = recorded(lambda: torch.stack([x.amax(1), x.amin(1), x[:, :7].amax(1)]), CPU, None)
    assert not tape.calls_torch
    for place in (0, 5, 64, 130, 150):  # in each vector, and behind the last one
        x.mul_(-1.1)
        x[1, place], x[2, place], x[3, place], x[4, place] = torch.nan, torch.inf, -torch.inf, 1e3
        expected = torch.stack([x.amax(1), x.amin(1), x[:, :7].amax(1)])
        assert torch.equal(tape.replay().nan_to_num(7.0), expected.nan_to_num(7.0))


def test_places_that_are_not_there():
    """Refuse an index that has come to be out of range, as torch does."""
    x, places = torch.arange(3.0), torch.tensor([0, 2])
    tape = recorded(lambda: (x + 1)[places], CPU, None)
    places.copy_(torch.tensor([1, -3]))
    assert tape.replay().tolist() == [2, 1]
    for wrong in (3, -4):
        places[0] = wrong
        with pytest.raises(IndexError, match="gather: an index is out of range"):
            tape.replay()
