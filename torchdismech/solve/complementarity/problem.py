"""The frictional contact problem of a batch: checks of its input, scaling, and selection of contacts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.errors import InputError

__all__ = [
    "ScaledContacts",
    "admitted",
    "block_of",
    "entries_of",
    "first_places",
    "independent_contacts",
    "rows_of",
    "scaled_contacts",
    "without_padding",
]

EQUILIBRATIONS = 6  # Ruiz iterations; each halves the exponents of the row norms
ASYMMETRY = 1e-6  # largest asymmetry of W, relative to its largest entry, that is taken for rounding


@dataclass(frozen=True)
class ScaledContacts:
    """The problem scaled to entries of about 1: W' = s W s, b' = s b / m, impulses p = m s p'.

    Contacts that are not active have a unit diagonal in W', b' = 0 and mu' = 0. The two tangential unknowns of a
    contact share one scale, so that its cone stays round: mu' = mu s_n / s_t.
    """

    delassus: Tensor  # (B, 3C, 3C)
    free: Tensor  # (B, 3C)
    mu: Tensor  # (B, C)
    active: Tensor  # (B, C)
    scale: Tensor  # (B, 3C), s
    magnitude: Tensor  # (B,), m

    def rows(self, index: Tensor) -> ScaledContacts:
        """Return the problems of the rows with indices (R,)."""
        return ScaledContacts(**{name: value[index] for name, value in vars(self).items()})


def _check_contacts(delassus: Tensor, free: Tensor, mu: Tensor, active: Tensor) -> None:
    """Refuse a problem with wrong shapes, a negative coefficient of friction, or a W that is not symmetric."""
    if free.ndim != 2 or free.shape[1] % 3 or not free.shape[1]:
        raise InputError(f"contacts: expected free velocities b of shape (B, 3C) with C >= 1, got {tuple(free.shape)}")
    rows, size = free.shape
    expected = {"W": (rows, size, size), "mu": (rows, size // 3), "active": (rows, size // 3)}
    for (name, shape), value in zip(expected.items(), (delassus, mu, active), strict=True):
        if tuple(value.shape) != shape:
            raise InputError(f"contacts: expected {name} of shape {shape} to go with b, got {tuple(value.shape)}")
    if active.dtype != torch.bool:
        raise InputError(f"contacts: active must be a bool tensor, got {active.dtype}")
    for name, value in {"W": delassus, "b": free, "mu": mu}.items():
        if value.dtype != torch.float64:
            raise InputError(f"contacts: {name} must be float64, got {value.dtype}; convert it with .double()")
    if bool((active & (mu < 0)).any()):
        row, contact = (active & (mu < 0)).nonzero()[0].tolist()
        raise InputError(f"contacts: mu of row {row}, contact {contact} is negative: {mu[row, contact].item():g}")


def _check_symmetric(delassus: Tensor) -> None:
    """Refuse a W (B, n, n) that is not symmetric or has a negative diagonal."""
    lopsided = (delassus - delassus.mT).abs().amax((1, 2)) > ASYMMETRY * delassus.abs().amax((1, 2))
    negative = (delassus.diagonal(dim1=1, dim2=2) < 0).any(1)
    for wrong, what in ((lopsided, "is not symmetric"), (negative, "has a negative diagonal entry")):
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0, 0])
            raise InputError(f"contacts: W of row {row} {what}; a Delassus operator is symmetric positive semidefinite")


def admitted(delassus: Tensor, free: Tensor, mu: Tensor, active: Tensor) -> tuple[Tensor, ...]:
    """Return W, b, mu and active, checked, detached and without padding, and the rows (B,) whose numbers are finite.

    Rows whose numbers are not finite are returned without active contacts.
    """
    _check_contacts(delassus, free, mu, active)
    delassus, free, mu = without_padding(delassus.detach(), free.detach(), mu.detach(), active)
    finite = torch.isfinite(delassus).flatten(1).all(1) & torch.isfinite(free).all(1) & torch.isfinite(mu).all(1)
    active = active & finite[:, None]
    delassus, free, mu = without_padding(delassus, free, mu, active)
    _check_symmetric(delassus)
    return delassus, free, mu, active, finite


def without_padding(delassus: Tensor, free: Tensor, mu: Tensor, active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return W, b and mu with the entries of inactive contacts (padding) replaced: unit diagonal, zero elsewhere."""
    every = active.repeat_interleave(3, 1)
    delassus = torch.where(every[:, :, None] & every[:, None], delassus, torch.diag_embed((~every).to(delassus.dtype)))
    return delassus, torch.where(every, free, 0.0), torch.where(active, mu, 0.0)


def first_places(which: Tensor) -> Tensor:
    """Return the indices (B, K) of the contacts of each row where `which` (B, C) is True.

    K is the largest number of such contacts in a row, at least 1. Rows with fewer are filled up, at the end, with
    contacts where it is False.
    """
    most = max([1, *which.sum(1).tolist()])
    return torch.argsort((~which).to(torch.uint8), dim=1, stable=True)[:, :most]


def entries_of(places: Tensor) -> Tensor:
    """Return the indices (B, 3K) among the 3C components of a row that belong to contacts with indices (B, K)."""
    return (3 * places.unsqueeze(2) + torch.arange(3, device=places.device)).flatten(1)


def rows_of(matrix: Tensor, entries: Tensor) -> Tensor:
    """Return the rows (B, n, 3C) of matrices (B, 3C, 3C) with indices (B, n)."""
    return matrix.gather(1, entries.unsqueeze(2).expand(-1, -1, matrix.shape[2]))


def block_of(matrix: Tensor, entries: Tensor) -> Tensor:
    """Return the square blocks (B, n, n) of matrices (B, 3C, 3C) whose rows and columns have indices (B, n)."""
    rows = rows_of(matrix, entries)
    return rows.gather(2, entries.unsqueeze(1).expand(-1, entries.shape[1], -1))


def scaled_contacts(delassus: Tensor, free: Tensor, mu: Tensor, active: Tensor) -> ScaledContacts:
    """Return the problem with W equilibrated (Ruiz, symmetric, by largest entries) and the largest |b'| scaled to 1.

    The solution is positively homogeneous in b, so nothing is lost by scaling b'.

    Parameters
    ----------
    delassus, free, mu, active : as from `without_padding`.
    """
    scale = torch.ones_like(free)
    for _ in range(EQUILIBRATIONS):
        norm = (scale[:, :, None] * delassus * scale[:, None]).abs().amax(2).unflatten(1, (-1, 3))
        tangential = norm[..., 1:].amax(2, keepdim=True).expand(-1, -1, 2)
        norm = torch.cat([norm[..., :1], tangential], 2).flatten(1)
        scale = scale / torch.where(norm > 0, norm, 1.0).sqrt()
    magnitude = (scale * free).abs().amax(1)
    magnitude = torch.where(magnitude > 0, magnitude, 1.0)
    each = scale.unflatten(1, (-1, 3))
    return ScaledContacts(
        delassus=scale[:, :, None] * delassus * scale[:, None],
        free=scale * free / magnitude[:, None],
        mu=mu * each[..., 0] / each[..., 1],
        active=active,
        scale=scale,
        magnitude=magnitude,
    )


def independent_contacts(
    delassus: Tensor, active: Tensor, tolerance: float = 1e-10, relative_to_first: bool = False
) -> Tensor:
    """Return the active contacts (B, C) that have independent normals, by inertial rank selection.

    The selection is a Cholesky factorisation of the normal block of W with diagonal pivoting, which equals the QR
    factorisation with column pivoting of L^-1 J_n^T (mass matrix L L^T) but does not need J_n. A contact is dropped
    where the part of its normal inverse inertia that the contacts chosen so far do not span is below `tolerance` times
    the whole.

    A dropped contact is not constrained: where its normal is a *difference* of others it may penetrate, and its
    friction is lost. Check the velocities of the dropped contacts.

    Parameters
    ----------
    delassus : (B, 3C, 3C); active : (B, C) bool.
    relative_to_first : compare the unspanned part of every contact with the largest normal inverse inertia of the row
        instead of the contact's own.
    """
    normal = delassus[:, ::3, ::3]
    whole = normal.diagonal(dim1=1, dim2=2)
    usable = active & (whole > 0)
    size = torch.where(usable, whole, 0.0).amax(1, keepdim=True).expand_as(whole) if relative_to_first else whole
    scale = torch.where(usable, size, 1.0).rsqrt()
    left = torch.where(usable, whole * scale.square(), 0.0)  # scaled diagonal entries, less the part spanned so far
    normal = scale[:, :, None] * torch.where(usable[:, :, None] & usable[:, None], normal, 0.0) * scale[:, None]
    chosen = torch.zeros_like(active)
    factor = torch.zeros_like(normal)
    for k in range(active.shape[1]):
        pivot_value, pivot = left.masked_fill(chosen, 0.0).max(1)
        take = pivot_value > tolerance
        if not bool(take.any()):
            break
        index = pivot[:, None, None].expand(-1, 1, normal.shape[2])
        row = normal.gather(1, index)[:, 0] - (factor @ factor.gather(1, index).mT)[..., 0]
        column = torch.where(take[:, None], row / torch.where(take, pivot_value, 1.0).sqrt()[:, None], 0.0)
        factor[:, :, k] = column
        left = left - column.square()
        chosen = chosen | (take[:, None] & torch.nn.functional.one_hot(pivot, active.shape[1]).bool())
    return chosen
