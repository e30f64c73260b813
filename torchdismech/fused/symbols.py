"""Symbols that stand in for tensors while a function is traced, and write its operations to a `Record`.

Operations are elementwise: every value is one number for each spring and robot, (S, B), or broadcasts to that.
Operations with a constant zero are simplified while they are recorded, as formulas of planar robots have many zeros
(`robot/plane.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from torchdismech.fused.record import Input, Record, RowChoice

__all__ = ["Leaf", "Symbol", "Unfusable", "chosen"]

ZERO, ONE = ("number", (0.0).hex()), ("number", (1.0).hex())
# Results of operations whose left or right operand is a constant zero; None: there is no such simplification. Here zero
# times a number that is not finite is zero.
OF_ZERO = {"mul": (ZERO, ZERO), "div": (ZERO, None)}
UNARY_OF_ZERO = {"neg": ZERO, "sine": ZERO, "cosine": ONE}
# constants on the left and on the right with which an operation returns its other operand
NEUTRAL = {"add": (ZERO, ZERO), "sub": (None, ZERO), "mul": (ONE, ONE), "div": (None, ONE)}


class Unfusable(Exception):
    """A function does something that is no elementwise operation on its tensors; the message says what."""


class _Recorded:
    """Base class of leaves and values: arithmetic, and the functions of torch that can be recorded."""

    record: Record
    _value: Callable[[], int]  # returns the number of this value in the record

    @classmethod
    def __torch_function__(cls, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Symbol:
        known = FUNCTIONS.get(function)
        if known is None or kwargs:
            raise Unfusable(f"{getattr(function, '__name__', function)}")
        return known(*args)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python asks for special methods to see whether they exist
            raise AttributeError(name)
        raise Unfusable(f"the attribute {name} of a tensor")

    def __add__(self, other: Any) -> Symbol:
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> Symbol:
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> Symbol:
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> Symbol:
        return _binary("sub", other, self)

    def __mul__(self, other: Any) -> Symbol:
        return _binary("mul", self, other)

    def __rmul__(self, other: Any) -> Symbol:
        return _binary("mul", other, self)

    def __truediv__(self, other: Any) -> Symbol:
        return _binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return _binary("div", other, self)

    def __neg__(self) -> Symbol:
        return _unary("neg", self)

    def __pow__(self, exponent: Any) -> Symbol:
        if type(exponent) is not int or exponent < 1:
            raise Unfusable(f"a power of {exponent}")
        power = Symbol.of(self)
        for _ in range(exponent - 1):
            power = power * self
        return power

    def __lt__(self, other: Any) -> Condition:
        return _comparison("less", self, other)

    def __gt__(self, other: Any) -> Condition:
        return _comparison("less", other, self)

    def __le__(self, other: Any) -> Condition:
        return _comparison("less_or_equal", self, other)

    def __ge__(self, other: Any) -> Condition:
        return _comparison("less_or_equal", other, self)

    def __eq__(self, other: Any) -> Condition:  # type: ignore[override]
        return _comparison("equal", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise Unfusable("a decision by the value of a tensor")

    def clamp(self, low: float, high: float) -> Symbol:
        """Return the value limited to the range between two numbers."""
        return _binary("least", _binary("most", self, low), high)


class Condition:
    """A truth value for each spring and robot."""

    def __init__(self, record: Record, number: int):
        self.record, self.number = record, number

    def __and__(self, other: Condition) -> Condition:
        return Condition(self.record, self.record.value("both", self.number, other.number))

    def __or__(self, other: Condition) -> Condition:
        return Condition(self.record, self.record.value("either", self.number, other.number))

    def __invert__(self) -> Condition:
        return Condition(self.record, self.record.value("not", self.number))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unfusable(f"the attribute {name} of a condition")

    def __bool__(self) -> bool:
        raise Unfusable("a decision by the value of a tensor")

    @classmethod
    def __torch_function__(cls, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Symbol:
        return _Recorded.__torch_function__(function, types, args, kwargs)


class Symbol(_Recorded):
    """A computed value, (S, B)."""

    def __init__(self, record: Record, number: int):
        self.record, self.number = record, number

    @classmethod
    def of(cls, given: Any) -> Symbol:
        """Return the value of a leaf, or of another symbol; refuse anything else."""
        if not isinstance(given, _Recorded):
            raise Unfusable(f"a result that is a {type(given).__name__}")
        return cls(given.record, given._value())

    @property
    def is_number(self) -> bool:
        """Whether the value is a constant."""
        return self.record.operations[self.number][0] == "number"

    @property
    def condition(self) -> Condition:
        """The value as a condition, which has to be the result of a comparison or of logic."""
        return Condition(self.record, self.number)

    def _value(self) -> int:
        return self.number

    def contiguous(self) -> Symbol:
        """Return the symbol itself: a symbol has no memory layout."""
        return self


class Leaf(_Recorded):
    """An argument of the function, or a view of it. When it is used as a value, its last dimensions are (S, B).

    Parameters
    ----------
    record : record to which operations are written.
    place : index of the tensor among the arguments.
    shape : of the tensor.
    dims : dimension of the tensor to which each dimension of the view belongs; None for a new one of size 1.
    chosen, rows : see `Input`.
    """

    def __init__(
        self,
        record: Record,
        place: int,
        shape: tuple[int, ...],
        dims: tuple[int | None, ...] | None = None,
        chosen: tuple[tuple[int, int], ...] = (),
        rows: RowChoice | None = None,
    ):
        self.record, self.place, self.whole = record, place, shape
        self.dims = tuple(range(len(shape))) if dims is None else dims
        self.chosen, self.rows = chosen, rows
        self._number: int | None = None  # number of its value in the record, once something has read it

    def _view(self, dims: tuple[int | None, ...], chosen: tuple = (), rows: RowChoice | None = None) -> Leaf:
        rows = self.rows if rows is None else rows
        return Leaf(self.record, self.place, self.whole, dims, self.chosen + chosen, rows)

    def _value(self) -> int:
        if self._number is None:
            if len(self.dims) > 2:
                raise Unfusable(f"a tensor of {len(self.dims)} dimensions as a scalar")
            spring, robot = (None, None, *self.dims)[-2:]
            self._number = self.record.read(Input(self.place, self.chosen, spring, robot, self.rows))
        return self._number

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the view."""
        return tuple(1 if d is None else self.whole[d] for d in self.dims)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.dims)

    def contiguous(self) -> Leaf:
        """Return the leaf itself: a leaf has no memory layout."""
        return self

    def t(self) -> Leaf:
        """Return a view with the two dimensions exchanged."""
        return self._view(self.dims[::-1])

    def transpose(self, first: int, second: int) -> Leaf:
        """Return a view with two dimensions exchanged."""
        dims = list(self.dims)
        dims[first], dims[second] = dims[second], dims[first]
        return self._view(tuple(dims))

    def unsqueeze(self, dim: int) -> Leaf:
        """Return a view with one more dimension of size 1."""
        dims = list(self.dims)
        dims.insert(dim if dim >= 0 else len(dims) + 1 + dim, None)
        return self._view(tuple(dims))

    def unbind(self, dim: int = 0) -> tuple[Leaf, ...]:
        """Return the slices along a dimension, as views without it."""
        dim = dim % len(self.dims)
        of = self.dims[dim]
        if of is None:
            raise Unfusable("parts along a dimension of size 1")
        self.record.taken_apart.add((self.place, of))
        rest = self.dims[:dim] + self.dims[dim + 1 :]
        return tuple(self._view(rest, ((of, k),)) for k in range(self.whole[of]))

    def __iter__(self) -> Iterator[Leaf]:
        return iter(self.unbind(0))

    def __getitem__(self, index: Any) -> Leaf:
        if isinstance(index, Leaf):
            if (self.rows, len(self.dims), index.rows, len(index.dims)) != (None, 2, None, 1) or index.dims[0] is None:
                raise Unfusable("an index into a tensor that is no row of a matrix for each spring")
            return self._view(self.dims, rows=RowChoice(index.place, index.chosen, index.dims[0]))
        view = self
        for k in index if isinstance(index, tuple) else (index,):
            if type(k) is not int:
                raise Unfusable(f"the index {k!r}")
            view = view.unbind(0)[k]
        return view


def _operand(record: Record, given: Any) -> int:
    if isinstance(given, _Recorded):
        return given._value()
    if isinstance(given, int | float):
        return record.number(given)
    raise Unfusable(f"an operation with a {type(given).__name__}")


def _record_of(a: Any, b: Any) -> Record:
    return a.record if isinstance(a, _Recorded) else b.record


def _binary(name: str, a: Any, b: Any) -> Symbol:
    record = _record_of(a, b)
    left, right = _operand(record, a), _operand(record, b)
    left_neutral, right_neutral = NEUTRAL.get(name, (None, None))
    if left_neutral is not None and record.operations[left] == left_neutral:
        return Symbol(record, right)
    if right_neutral is not None and record.operations[right] == right_neutral:
        return Symbol(record, left)
    if name == "sub" and record.operations[left] == ZERO:
        return _unary("neg", Symbol(record, right))
    for operand, known in zip((left, right), OF_ZERO.get(name, (None, None)), strict=True):
        if known is not None and record.operations[operand] == ZERO:
            return Symbol(record, record.value(*known))
    return Symbol(record, record.value(name, left, right))


def _comparison(name: str, a: Any, b: Any) -> Condition:
    record = _record_of(a, b)
    return Condition(record, record.value(name, _operand(record, a), _operand(record, b)))


def chosen(condition: Any, a: Any, b: Any) -> Symbol:
    """Return the value that is a where a condition holds and b elsewhere."""
    if not isinstance(condition, Condition):
        raise Unfusable(f"a choice by a {type(condition).__name__}")
    record = condition.record
    return Symbol(record, record.value("chosen", condition.number, _operand(record, a), _operand(record, b)))


def _unary(name: str, a: Any) -> Symbol:
    record, number = a.record, a._value()
    if name in UNARY_OF_ZERO and record.operations[number] == ZERO:
        return Symbol(record, record.value(*UNARY_OF_ZERO[name]))
    return Symbol(record, record.value(name, number))


def _softplus(a: Any, beta: float, threshold: float) -> Symbol:
    if beta != 1:
        raise Unfusable(f"softplus with beta = {beta}")
    return Symbol(a.record, a.record.value("softplus", a._value(), a.record.number(threshold)))


def _full_like(a: Any, value: float) -> Symbol:
    return Symbol(a.record, a.record.number(value))


FUNCTIONS: dict[Callable, Callable] = {
    torch.sqrt: partial(_unary, "root"),
    torch.sin: partial(_unary, "sine"),
    torch.cos: partial(_unary, "cosine"),
    torch.atan2: partial(_binary, "angle"),
    torch.round: partial(_unary, "rounded"),
    torch.abs: partial(_unary, "absolute"),
    torch.maximum: partial(_binary, "most"),
    torch.minimum: partial(_binary, "least"),
    torch.where: chosen,
    torch.exp: partial(_unary, "exponential"),
    torch.expm1: partial(_unary, "exponential_less_one"),
    torch.log: partial(_unary, "logarithm"),
    torch.tanh: partial(_unary, "hyperbolic_tangent"),
    torch.sigmoid: partial(_unary, "sigmoid"),
    torch.nn.functional.softplus: _softplus,
    torch.full_like: _full_like,
    torch.zeros_like: partial(_full_like, value=0.0),
    torch.ones_like: partial(_full_like, value=1.0),
}
