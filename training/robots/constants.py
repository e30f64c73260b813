"""Constants of a model that training changes, and their priors: the entries of `[constants]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchdismech import InputError, trainable
from torchdismech.values import Place
from training.config import Constant

__all__ = ["AddedMass", "Named", "Trained"]


@dataclass(frozen=True)
class Named:
    """Constants by name, of a model and of modules around it, in the form that `torchdismech.trainable` takes."""

    places: Mapping[str, Place]
    dtype: torch.dtype
    device: torch.device
    not_negative: tuple[str, ...] = ()

    def constants(self) -> dict[str, Place]:
        """Return the place of each constant by name: (module, attribute)."""
        return dict(self.places)


class AddedMass(nn.Module):
    """Masses of nodes on top of a body's: a parametrization to be registered on `body.mass`.

    Attributes
    ----------
    mass : (N,) or (B, N) of the nodes [kg].
    """

    mass: Tensor

    def __init__(self, nodes: Tensor):
        super().__init__()
        self.register_buffer("mass", nodes.new_zeros(len(nodes)), persistent=False)

    def forward(self, base: Tensor) -> Tensor:
        """Return the masses (.., n) of all dofs, with those added on the nodes' positions."""
        nodes = self.mass.repeat_interleave(3, dim=-1)
        return base + nn.functional.pad(nodes, (0, base.shape[-1] - nodes.shape[-1]))


class Trained(nn.Module):
    """One entry of `[constants]`: a factor or a shift of some tensors, and its prior.

    Making one registers the factor or shift on the tensors.

    Parameters
    ----------
    named : the constants that there are, by name.
    name : of the entry.
    constant : the entry.
    counts : number of elements of the constants of elastic terms, by name; such a tensor may hold one number for all.

    Attributes
    ----------
    mask : shaped as the parameter, 1 where it may change and 0 elsewhere.
    center, spread : mean and standard deviation of the parameter's prior, shaped as it is; 0 and infinity without one.
    """

    mask: Tensor
    center: Tensor
    spread: Tensor

    def __init__(self, named: Named, name: str, constant: Constant, counts: Mapping[str, int]):
        super().__init__()
        places = _found(named, name, constant.tensors)
        for place in places:
            _give_robots_a_dimension(place)
        self.place = places[0]
        self._robots_at, self._dimensions = _layout(named, name, constant)
        base = getattr(*self.place).detach()
        shape = _shape(named, name, constant, counts)
        self.change = _change(named, name, constant, shape)
        self.constant_kind = constant.kind
        self.unit = constant.unit or 1.0
        mask = _mask(name, constant, self.parameter)
        self.register_buffer("mask", mask, persistent=False)
        self.parameter.register_hook(lambda gradient: gradient * self.mask)
        center, spread = _prior(name, constant, self.parameter, base)
        self.register_buffer("center", center, persistent=False)
        self.register_buffer("spread", spread, persistent=False)

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter that the optimiser changes: the logarithm of a factor, or a shift in its units."""
        return next(self.change.parameters())

    @property
    def value(self) -> Tensor:
        """The present value of the first tensor."""
        return getattr(*self.place).detach()

    @property
    def value_of_trained(self) -> Tensor:
        """The present value of the first tensor, without elements that are not chosen and zeros that a factor keeps."""
        value = self.value if bool(self.mask.all()) else self.value[..., self.mask > 0]
        return value[value != 0] if self.constant_kind == "factor" and bool((value == 0).any()) else value

    def for_robots(self, moves: Tensor) -> Tensor:
        """Return the parameter for each of B robots: the present value plus the robot's row of `moves` (B, P)."""
        own, at = self.parameter.detach(), self._robots_at
        row = (*own.shape[:at], *own.shape[at + (at > 0) :]) if own.dim() else (1,) * self._dimensions
        return own + moves.view(-1, *row).movedim(0, at)

    def penalty(self) -> Tensor:
        """Return half the sum of squared deviations from the prior's mean, in its standard deviations."""
        off = (self.parameter - self.center) / self.spread
        return 0.5 * (off.square() * self.mask).sum()

    @property
    def has_prior(self) -> bool:
        """Whether any number of the entry has a prior."""
        return bool(self.spread.isfinite().any())


def _found(named: Named, name: str, tensors: list[str]) -> list[Place]:
    unknown = [tensor for tensor in tensors if tensor not in named.places]
    if unknown:
        raise InputError(
            f"constants.{name}: no {unknown[0]!r} in this model; there are: {', '.join(sorted(named.places))}"
        )
    return [named.places[tensor] for tensor in tensors]


def _shape(named: Named, name: str, constant: Constant, counts: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of the parameter: () for one number, else that of one robot's elements.

    A tensor over time has a dimension of 1 for robots after that of time.
    """
    if constant.per == "all":
        return ()
    tensor = constant.tensors[0]
    if tensor in counts:
        return (counts[tensor],)
    row, at = _row(named.places[tensor]), _robot_dimension(named.places[tensor])
    if not row:
        raise InputError(f'constants.{name}: {tensor} is one number for all elements: expected per = "all"')
    return (*row[:at], 1, *row[at:]) if at else row


def _change(named: Named, name: str, constant: Constant, shape: tuple[int, ...]) -> nn.Module:
    """Register a factor or a shift on the tensors of an entry, and return its module; refuse in words of the config."""
    try:
        if constant.unit is None:
            return trainable.scaled(named, constant.tensors, shape)
        return trainable.shifted(named, constant.tensors, constant.unit, shape)
    except InputError as error:
        told = str(error).removeprefix("scaled: ").replace("use shifted(...)", 'set kind = "shift" and unit')
        told = told.replace("is trained already", "is trained by another entry already: leave it out of one of them")
        raise InputError(f"constants.{name}: {told}") from error


def _layout(named: Named, name: str, constant: Constant) -> tuple[int, int]:
    """Return the tensors' dimension of robots, and the number of their other dimensions, one at least.

    Refuse an entry whose tensors differ in these, as a list and a table do: one parameter does not fit both.
    """
    places = {t: named.places[t] for t in constant.tensors}
    found = {t: (_robot_dimension(place), len(_row(place)) or 1) for t, place in places.items()}
    if len({*found.values()}) > 1:
        raise InputError(
            f"constants.{name}: {min(found, key=lambda t: found[t])} is a list of numbers and "
            f"{max(found, key=lambda t: found[t])} a table: train them by entries of their own"
        )
    return found[constant.tensors[0]]


def _robot_dimension(place: Place) -> int:
    """Return the dimension of robots in a tensor: 0, or 1 where the first dimension is time."""
    return getattr(place[0], "robot_dimension", 0)


def _give_robots_a_dimension(place: Place) -> None:
    """Give a tensor over time (T, ..) a dimension of robots (T, 1, ..), so that changes of single robots fit."""
    own, at = getattr(*place), _robot_dimension(place)
    if at and own.dim() < 2 + at:
        own.data = own.data.unsqueeze(at)


def _row(place: Place) -> tuple[int, ...]:
    """Return the shape of a tensor for one robot; () of a single number."""
    shape, at = tuple(getattr(*place).shape), _robot_dimension(place)
    return (*shape[:at], *shape[at + 1 :]) if len(shape) > 1 + at else shape


def _mask(name: str, constant: Constant, parameter: Tensor) -> Tensor:
    """Return 1 where the parameter may change, 0 elsewhere."""
    if constant.elements is None:
        return torch.ones_like(parameter)
    wrong = [k for k in constant.elements if k >= parameter.numel()]
    if wrong:
        raise InputError(
            f"constants.{name}.elements: expected 0 to {parameter.numel() - 1}, as {constant.tensors[0]} has, got "
            f"{wrong[0]}"
        )
    mask = torch.zeros_like(parameter).flatten()
    mask[constant.elements] = 1
    return mask.view_as(parameter)


def _prior(name: str, constant: Constant, parameter: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of the parameter's prior, shaped as it is; 0 and infinity without one."""
    elements = range(parameter.numel()) if constant.elements is None else constant.elements
    count, where = len(elements), torch.tensor(elements, dtype=torch.long, device="cpu")
    given: dict[str, Tensor] = {}
    for field in ("mean", "spread"):
        value = getattr(constant, field)
        if isinstance(value, list) and len(value) != count:
            raise InputError(
                f"constants.{name}.{field}: expected one number or {count}, as many as are trained, got {len(value)}"
            )
        if value is not None:
            given[field] = torch.as_tensor(value, dtype=parameter.dtype, device="cpu").expand(count)
    center, spread = (
        torch.zeros(parameter.numel(), device="cpu").to(parameter),
        torch.full((parameter.numel(),), torch.inf, device="cpu").to(parameter),
    )
    factor = constant.kind == "factor"
    if "spread" in given:
        spread[where] = given["spread"] if factor else given["spread"] / float(constant.unit or 1)
    if "mean" in given:
        one = (base[base != 0] if factor else base.reshape(-1))[:1]  # zeros stay zero under a factor
        own = base.reshape(-1)[where] if base.numel() == parameter.numel() else one.expand(count)
        if factor and bool((given["mean"] * own <= 0).any()):
            raise InputError(
                f"constants.{name}.mean: expected the sign that the constant has, {float(own[0]):g}: a factor keeps it"
            )
        center[where] = (given["mean"] / own).log() if factor else (given["mean"] - own) / float(constant.unit or 1)
    return center.view_as(parameter), spread.view_as(parameter)
