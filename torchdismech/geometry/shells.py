r"""Bending strains of triangulated shells with first and second derivatives, by components.

As in `rods.py`, every scalar is one tensor, usually `(S, B)`.

A triangle with unit normal n seen from one of its sides: e along the side, a from the start of e to the opposite node,

==============  ===========================================================================
t, l            unit vector and length of e
c               n x t, in the triangle, from the side towards the opposite node
height, lean    a = lean l t + height c
p               n / height
==============  ===========================================================================

The angle rho about t from n to a direction that is transported with the side (parallel transport from the current t)
has the derivatives  d rho / da = -p  and  d rho / de = lean p,  and with S = n c^T + c n^T

    d2 rho / da da = S / height^2
    d2 rho / da de = -lean S / height^2 + t n^T / (l height)         (row a, column e; t n^T: row t)
    d2 rho / de de = (lean^2 / height^2 + 1 / (2 l^2)) S - lean / (l height) (n t^T + t n^T)

(the last one symmetrised: the rest belongs to the direction's transport). A hinge angle is such an angle seen from one
triangle minus that seen from the other, where the transported direction drops out. The angle of a mid-edge normal is
one such angle.
Sources: Grinspun, Hirani, Desbrun and Schroeder, Discrete shells, 2003; Grinspun, Gingold, Reisman and Zorin, Computing
discrete shape operators on general meshes, 2006. The derivatives were derived anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdismech.geometry.rods import EdgeFrame
from torchdismech.geometry.vec3 import Vec3, outer_sym

__all__ = ["PAIRS_9", "MidEdge", "hinge_angle", "hinge_angle_derivatives", "hinge_angles", "mid_edge"]

PAIRS_9 = [(i, j) for i in range(9) for j in range(i, 9)]


# ---- a triangle from one of its sides ------------------------------------------------------------------------------


@dataclass
class _Side:
    """Triangles seen from one of their sides; see the module's table for the symbols."""

    t: Vec3
    n: Vec3
    c: Vec3
    inverse: Tensor  # 1 / l
    inverse_height: Tensor
    lean: Tensor

    def by_a(self) -> Vec3:
        """Return p, which is minus the derivative of rho by a."""
        return self.n.times(self.inverse_height)

    def blocks(self, weight: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Return `weight` times the second derivatives of rho: (aa) and (ee), 6 entries each, and (a, e), 9 entries."""
        over = self.inverse_height * weight
        square = over * self.inverse_height
        both = outer_sym(self.n, self.c.times(2 * square))
        along = over * self.inverse
        # ee: n (x) [2 (lean^2 square + weight / (2 l^2)) c - 2 lean along t], symmetrised
        lean_square = self.lean * self.lean
        mixed = self.c.times(2 * lean_square * square + weight * self.inverse * self.inverse)
        ee = outer_sym(self.n, mixed - self.t.times(2 * self.lean * along))
        scaled = [self.lean * entry for entry in both]
        n, t = self.n.components(), self.t.times(along).components()
        ae = [t[i] * n[j] - scaled[_packed(i, j)] for i in range(3) for j in range(3)]
        return list(both), list(ee), ae


def _packed(i: int, j: int) -> int:
    """Return the index of entry (i, j) of a symmetric 3 x 3 block among its six stored ones."""
    i, j = min(i, j), max(i, j)
    return (0, 3, 5)[i] + j - i


def _side(e: Vec3, a: Vec3, turned: bool = False) -> _Side:
    """Return the triangle of e and a; its normal is along e x a, or a x e where it is `turned`."""
    square = e.dot(e)
    inverse = 1 / torch.sqrt(square)
    t = e.times(inverse)
    lean = a.dot(e) / square
    across = a - e.times(lean)
    inverse_height = 1 / torch.sqrt(across.dot(across))
    c = across.times(inverse_height)
    n = c.cross(t) if turned else t.cross(c)
    return _Side(t, n, c, inverse, inverse_height, lean)


# ---- hinges --------------------------------------------------------------------------------------------------------


def hinge_angle(e: Vec3, a: Vec3, b: Vec3) -> Tensor:
    """Return the angle in (-pi, pi] about e from the normal e x a of one triangle to the normal b x e of the other."""
    first, second = e.cross(a), b.cross(e)
    return torch.atan2(first.cross(second).dot(e) / torch.sqrt(e.dot(e)), first.dot(second))


def hinge_angles(positions: Tensor, hinges: np.ndarray | Tensor) -> Tensor:
    """Return the angles (.., H) [rad] of hinges (H, 4) as in `Surface.hinges`, for nodes at positions (.., N, 3)."""
    start, end, first, second = torch.as_tensor(hinges, device=positions.device).unbind(1)
    origin = positions[..., start, :]
    e, a, b = (Vec3(*(positions[..., node, :] - origin).unbind(-1)) for node in (end, first, second))
    return hinge_angle(e, a, b)


def hinge_angle_derivatives(e: Vec3, a: Vec3, b: Vec3) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return the hinge angle, its 9 first derivatives by (e, a, b) and its 45 second ones in the order of `PAIRS_9`."""
    first, second = _side(e, a), _side(e, b, turned=True)
    angle = torch.atan2(first.n.cross(second.n).dot(first.t), first.n.dot(second.n))
    p, q = first.by_a(), second.by_a()
    by_e = p.times(first.lean) + q.times(second.lean)
    gradient = [*by_e.components(), *(-p).components(), *(-q).components()]
    one = torch.ones_like(angle)
    aa, ee, ae = first.blocks(one)
    bb, ee_b, be = second.blocks(one)
    zero = torch.zeros_like(angle)
    ee = [x + y for x, y in zip(ee, ee_b, strict=True)]
    ea, eb = _transposed(ae), _transposed(be)
    return angle, gradient, _assembled([ee, aa, bb], [ea, eb, [zero] * 9])


def _transposed(block: list[Tensor]) -> list[Tensor]:
    return [block[3 * j + i] for i in range(3) for j in range(3)]


def _assembled(diagonal: list[list[Tensor]], mixed: list[list[Tensor]]) -> list[Tensor]:
    """Return the 45 entries of three 3 x 3 diagonal blocks (6 entries each) and the blocks 01, 02, 12 (9 each)."""
    d0, d1, d2 = diagonal
    m01, m02, m12 = mixed
    return [
        *d0[0:3], *m01[0:3], *m02[0:3],
        *d0[3:5], *m01[3:6], *m02[3:6],
        d0[5], *m01[6:9], *m02[6:9],
        *d1[0:3], *m12[0:3],
        *d1[3:5], *m12[3:6],
        d1[5], *m12[6:9],
        *d2,
    ]  # fmt: skip


# ---- mid-edge normals ----------------------------------------------------------------------------------------------


@dataclass
class MidEdge:
    """Angles of the mid-edge normals of triangles, with what their derivatives need.

    Side k is opposite to node k and walked counter-clockwise; e_0 + e_1 + e_2 = 0. The local variables are e_1, e_2 and
    the angles psi_0, psi_1, psi_2 of the normals about the sides as walked, against the sides' frames.

    Attributes
    ----------
    slopes : tan(rho_k): the mid-edge normal N of side k, scaled to N . n = 1, is n + slope * (outward unit vector).
    """

    slopes: tuple[Tensor, Tensor, Tensor]
    sides: list[_Side]
    frames: list[EdgeFrame]

    def first(self) -> list[list[Tensor]]:
        """Return for each slope its 9 derivatives by (e_1, e_2, psi)."""
        gradients = []
        for k in range(3):
            stretch = 1 + self.slopes[k] * self.slopes[k]
            by_side, by_previous = (v.times(stretch) for v in self._angle_gradient(k))
            by_edges = _by_independent(k, by_side, by_previous)
            angles = [stretch if k == j else torch.zeros_like(stretch) for j in range(3)]
            gradients.append([*by_edges[0].components(), *by_edges[1].components(), *angles])
        return gradients

    def _angle_gradient(self, k: int) -> tuple[Vec3, Vec3]:
        """Return the derivatives of the angle rho_k by e_k and by e_{k-1} (a = -e_{k-1})."""
        p = self.sides[k].by_a()
        return p.times(self.sides[k].lean) + self.frames[k].turn, p

    def second(self, weights: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
        """Return sum_k weights_k d2 slope_k: the 45 entries of `PAIRS_9`."""
        same: list[list[Tensor] | None] = [None, None, None]  # blocks (e_k, e_k), 6 entries
        mixed: list[list[Tensor]] = []  # block (e_{k-1}, e_k), 9 entries
        by_angle: list[tuple[Vec3, Vec3]] = []
        psi: list[Tensor] = []
        for k in range(3):
            previous, frame = (k - 1) % 3, self.frames[k]
            stretch = weights[k] * (1 + self.slopes[k] * self.slopes[k])
            curve = 2 * self.slopes[k] * stretch  # tan'' = 2 tan tan'
            side, by_previous = self._angle_gradient(k)
            aa, ee, ae = self.sides[k].blocks(stretch)
            turn = outer_sym(frame.turn, frame.twice_mean().times(-stretch * frame.inverse))
            own = outer_sym(side, side.times(curve))
            ee = [x + y + z for x, y, z in zip(ee, turn, own, strict=True)]
            theirs = outer_sym(by_previous, by_previous.times(curve))
            aa = [x + y for x, y in zip(aa, theirs, strict=True)]
            for j, block in ((k, ee), (previous, aa)):
                known = same[j]
                same[j] = block if known is None else [x + y for x, y in zip(known, block, strict=True)]
            rows, cols = by_previous.times(curve).components(), side.components()
            mixed.append([rows[i] * cols[j] - ae[3 * i + j] for i in range(3) for j in range(3)])
            by_angle.append((side.times(curve), by_previous.times(curve)))
            psi.append(curve)
        return self._packed(same, mixed, by_angle, psi)

    @staticmethod
    def _packed(same, mixed, by_angle, psi) -> list[Tensor]:
        """Return the 45 entries by the independent variables, with e_0 = -e_1 - e_2 eliminated.

        `mixed[k]` has rows e_{k-1} and columns e_k: mixed[0] is (e_2, e_0), mixed[1] (e_0, e_1), mixed[2] (e_1, e_2).
        """
        m20, m01, m12 = mixed
        h11, h22, h12 = [], [], []
        for i in range(3):
            for j in range(3):
                ij, ji, s = 3 * i + j, 3 * j + i, _packed(i, j)
                if j >= i:
                    h11.append(same[1][s] + same[0][s] - m01[ij] - m01[ji])
                    h22.append(same[2][s] + same[0][s] - m20[ij] - m20[ji])
                # d1 d2: H12 - H10 - H02 + H00, with H10 the transpose of (e_0, e_1) and H02 that of (e_2, e_0)
                h12.append(m12[ij] - m01[ji] - m20[ji] + same[0][s])
        zero = torch.zeros_like(psi[0])
        edges = [_by_independent(k, *by_angle[k]) for k in range(3)]
        p1 = [[edges[k][0].components()[i] for k in range(3)] for i in range(3)]
        p2 = [[edges[k][1].components()[i] for k in range(3)] for i in range(3)]
        return [
            *h11[0:3], *h12[0:3], *p1[0],
            *h11[3:5], *h12[3:6], *p1[1],
            h11[5], *h12[6:9], *p1[2],
            *h22[0:3], *p2[0],
            *h22[3:5], *p2[1],
            h22[5], *p2[2],
            psi[0], zero, zero, psi[1], zero, psi[2],
        ]  # fmt: skip


def _by_independent(k: int, by_side: Vec3, by_previous: Vec3) -> tuple[Vec3, Vec3]:
    """Return the derivatives by e_1 and e_2 of a function of e_k and e_{k-1}, with e_0 = -e_1 - e_2."""
    if k == 0:  # e_0 and e_2
        return -by_side, by_previous - by_side
    if k == 1:  # e_1 and e_0
        return by_side - by_previous, -by_previous
    return by_previous, by_side  # e_2 and e_1


def mid_edge(e1: Vec3, e2: Vec3, psi: list[Tensor], starts: list[Vec3], anchors: list[Vec3]) -> MidEdge:
    """Return the mid-edge normals of triangles, as `MidEdge`.

    Parameters
    ----------
    e1, e2 : sides opposite to nodes 1 and 2, walked counter-clockwise.
    psi : angles of the three normals about the sides as walked.
    starts, anchors : unit tangents (as walked) and unit directors of the three sides at the start of the step: the
        frame of a side is its anchor, parallel transported to the side's current direction.
    """
    e = [-(e1 + e2), e1, e2]
    sides = [_side(e[k], -e[k - 1]) for k in range(3)]
    frames = [EdgeFrame.of(e[k], starts[k], anchors[k]) for k in range(3)]
    normals = [
        f.d1.times(torch.cos(angle)) + f.d2.times(torch.sin(angle)) for f, angle in zip(frames, psi, strict=True)
    ]
    # outward is -c: N = cos(rho) n + sin(rho) (t x n) and t x n = -c
    a, b, c = (-normal.dot(side.c) / normal.dot(side.n) for normal, side in zip(normals, sides, strict=True))
    return MidEdge((a, b, c), sides, frames)
