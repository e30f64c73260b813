"""Material frames of edges, and the derivatives of vectors fixed in them by edge vector and angle.

A change de of the edge vector e and dtheta of the angle rotates vectors that are fixed in the frame by

    omega = t x de / l + (dtheta + turn . de) t,   turn = - (s x t) / ((1 + s . t) l),

where the reference frame is parallel transported from the tangent s to t = e / l.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.geometry.frames import rotated, transported

__all__ = ["MaterialFrames", "cross_matrix", "outer"]


@dataclass(frozen=True)
class MaterialFrames:
    """Material frames (t, m1, m2) of edges, with what their derivatives need; vectors are (.., 3).

    A vector is *carried* if it has constant components in its edge's frame.

    Attributes
    ----------
    length : (.., 1) lengths l of the edges.
    anchor : tangents s at which the reference frames are anchored.
    turn : derivative by e of the transported frame's turn about t, see the module.
    """

    t: Tensor
    m1: Tensor
    m2: Tensor
    length: Tensor
    anchor: Tensor
    turn: Tensor

    @classmethod
    def of(cls, e: Tensor, angle: Tensor, anchor: Tensor, director: Tensor) -> MaterialFrames:
        """Return the frames of edges e (.., 3) with angles (..); `director` is the reference director at `anchor`."""
        length = torch.linalg.vector_norm(e, dim=-1, keepdim=True)
        t = e / length
        m1 = rotated(transported(director, anchor, t), t, angle)
        chi = 1 + (anchor * t).sum(-1, keepdim=True)
        turn = -torch.linalg.cross(anchor, t) / (chi * length)
        return cls(t, m1, torch.linalg.cross(t, m1), length, anchor, turn)

    def carried(self, components: Tensor) -> Tensor:
        """Return the vectors whose components along t, m1 and m2 are these (.., 3)."""
        along, first, second = components.split(1, dim=-1)
        return along * self.t + first * self.m1 + second * self.m2

    def by_angle(self, vector: Tensor) -> Tensor:
        """Return the derivatives (.., 3) of carried vectors by the angles."""
        return torch.linalg.cross(self.t.expand_as(vector), vector)

    def by_edge(self, vector: Tensor) -> Tensor:
        """Return the derivatives (.., 3, 3) of carried vectors by the edges."""
        along = (self.t * vector).sum(-1, keepdim=True).unsqueeze(-1)
        straight = (along * _identity(vector) - outer(self.t, vector)) / self.length.unsqueeze(-1)
        return straight + outer(self.by_angle(vector), self.turn)

    def tangent_by_edge(self) -> Tensor:
        """Return the derivatives (.., 3, 3) of the tangents by the edges."""
        return (_identity(self.t) - outer(self.t, self.t)) / self.length.unsqueeze(-1)

    def turn_by_edge(self) -> Tensor:
        """Return the derivatives (.., 3, 3) of `turn` by the edges."""
        length, tangent_by_edge = self.length.unsqueeze(-1), self.tangent_by_edge()
        chi = (1 + (self.anchor * self.t).sum(-1, keepdim=True)).unsqueeze(-1)
        return (
            -cross_matrix(self.anchor) @ tangent_by_edge / (chi * length)
            - outer(self.turn, (tangent_by_edge @ self.anchor.unsqueeze(-1)).squeeze(-1)) / chi
            - outer(self.turn, self.t) / length
        )

    def taken(self, index: Tensor) -> MaterialFrames:
        """Return the frames of the edges with these indices, which number the last but one dimension of the vectors."""
        fields = (self.t, self.m1, self.m2, self.length, self.anchor, self.turn)
        return MaterialFrames(*(x.index_select(-2, index) for x in fields))

    def slopes(self, products: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives of sums of f . P by edges (.., 3) and angles (..), for carried P and constant f.

        Parameters
        ----------
        products : (.., 3, 3) sums of P f^T.
        """
        t = self.t.unsqueeze(-1)
        torque = (self.t * _axial(products)).sum(-1)
        straight = ((products.mT - products) @ t).squeeze(-1) / self.length
        return straight + torque.unsqueeze(-1) * self.turn, torque

    def second(self, products: Tensor) -> Tensor:
        """Return the second derivatives (.., 4, 4) of sums of f . P by edge and angle, from sums of P f^T."""
        t, length, axial = self.t.unsqueeze(-1), self.length.unsqueeze(-1), _axial(products)
        tangent_by_edge = self.tangent_by_edge()
        by_weights, by_vectors = (products @ t).squeeze(-1), (products.mT @ t).squeeze(-1)  # (t . f) P, (t . P) f
        torque = (self.t * axial).sum(-1, keepdim=True)
        twice = (self.t * by_weights).sum(-1, keepdim=True) - products.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
        torque_by_edge = torch.linalg.cross(by_vectors, self.t.expand_as(by_vectors)) / self.length
        torque_by_edge = torque_by_edge + (tangent_by_edge @ axial.unsqueeze(-1)).squeeze(-1) + twice * self.turn
        straight = (by_vectors - by_weights) / self.length
        edges = -(products @ tangent_by_edge + self.by_edge(by_weights)) / length - outer(straight, self.t) / length
        edges = edges + outer(self.turn.expand_as(axial), torque_by_edge) + torque.unsqueeze(-1) * self.turn_by_edge()
        mixed = torque_by_edge.unsqueeze(-1)
        return torch.cat(
            [torch.cat([edges, mixed], dim=-1), torch.cat([mixed.mT, twice.unsqueeze(-1)], dim=-1)], dim=-2
        )


def outer(a: Tensor, b: Tensor) -> Tensor:
    """Return the products a b^T (.., 3, 3)."""
    return a.unsqueeze(-1) * b.unsqueeze(-2)


def cross_matrix(v: Tensor) -> Tensor:
    """Return the matrices (.., 3, 3) that map u to v x u."""
    x, y, z = v.unbind(-1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).unflatten(-1, (3, 3))


def _identity(like: Tensor) -> Tensor:
    return torch.eye(3, dtype=like.dtype, device=like.device)


def _axial(products: Tensor) -> Tensor:
    """Return the sums of P x f (.., 3), from the sums of P f^T."""
    rows = [products[..., i, j] - products[..., j, i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return torch.stack(rows, dim=-1)
