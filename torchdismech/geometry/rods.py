r"""Strains of a discrete elastic rod with first and second derivatives, by components.

Every scalar is one tensor, usually `(S, B)`: S stencils, B robots. Derivatives are by the local variables of a stencil:
the edge vector e for stretch; e, f, theta_e, theta_f for bending and twist, where e enters the
centre node and f leaves it.
Sources: Bergou et al. 2008 and 2010; the second derivatives were derived anew.

==============  =======================================================================
e, f            edge vectors, lengths |e|, |f|, tangents t_e, t_f
chi             1 + t_e . t_f
tt              (t_e + t_f) / chi
kb              curvature binormal 2 t_e x t_f / chi
kappa1, kappa2  kb . m2 and -kb . m1 for the material frame half-way between the edges'
tau             theta_f - theta_e + reference twist
==============  =======================================================================

Half-way frame. The frame of e, turned by tau/2 about t_e, and that of f, turned back by tau/2 about t_f, are the same
but for the parallel transport along kb, which leaves kb alone: m1e, m2e, m1f, m2f below are these, and both see the
same components of kb. So |kappa| = |kb|, and twist does not change what bends. As the two see the same, the gradients
of kappa are those at frames that do not follow the twist, and the second derivatives gain kappa/4 grad tau (x) grad
tau. The papers' curvature is kb . (m2e + m2f) / 2 with the frames as they are (`averaged`): it shrinks with twist, by
cos(tau/2).

Frames. The reference director of an edge is its anchor (unit vector d at tangent s, fixed during a step) transported
from s to the current tangent t. Moving t by dt turns the transported director about t, against a frame transported
from t itself, by dphi = -kb_s . dt / 2 with kb_s = 2 s x t / (1 + s . t). With this turn added to theta the gradients
below are the exact derivatives of the strains as functions of q, and the second derivatives are symmetric.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchdismech.geometry.vec3 import Vec3, outer_sym

__all__ = [
    "PAIRS_3",
    "PAIRS_8",
    "BendTwist",
    "EdgeFrame",
    "bend_twist",
    "reference_twist",
    "stretch",
    "stretch_derivatives",
]

PAIRS_3 = [(i, j) for i in range(3) for j in range(i, 3)]
PAIRS_8 = [(i, j) for i in range(8) for j in range(i, 8)]


# ---- stretch -----------------------------------------------------------------------------------------------------


def stretch(e: Vec3, rest_length: Tensor) -> Tensor:
    """Return the stretch |e| / rest_length - 1."""
    return torch.sqrt(e.dot(e)) / rest_length - 1


def stretch_derivatives(e: Vec3, rest_length: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return the stretch, its 3 first derivatives and its 6 second ones (xx, xy, xz, yy, yz, zz) by e."""
    length = torch.sqrt(e.dot(e))
    t = e.times(1 / length)
    first = t.times(1 / rest_length)
    scale = 1 / (length * rest_length)
    tt = outer_sym(t, t)
    second = [(1 - tt[k]) * scale if i == j else -tt[k] * scale for k, (i, j) in enumerate(PAIRS_3)]
    return length / rest_length - 1, list(first.components()), second


# ---- bend and twist ----------------------------------------------------------------------------------------------


@dataclass
class EdgeFrame:
    """An edge's tangent t, 1 / length, reference directors d1, d2 at t, and how the transported frame turns with e."""

    t: Vec3
    inverse: Tensor
    d1: Vec3
    d2: Vec3
    turn: Vec3  # dphi/de, see the module
    start: Vec3  # tangent at which the director is anchored

    @classmethod
    def of(cls, e: Vec3, start: Vec3, anchor: Vec3) -> EdgeFrame:
        """Return the frame of an edge whose first director is `anchor`, transported from the tangent `start`."""
        inverse = 1 / torch.sqrt(e.dot(e))
        t = e.times(inverse)
        axis = start.cross(t)
        cosine = start.dot(t)
        over = 1 / (1 + cosine)
        d1 = anchor.times(cosine) + axis.cross(anchor) + axis.times(axis.dot(anchor) * over)
        return cls(t, inverse, d1, t.cross(d1), axis.times(-over * inverse), start)

    def directors(self, theta: Tensor) -> tuple[Vec3, Vec3]:
        """Return the reference directors rotated by an angle about the tangent."""
        cos, sin = torch.cos(theta), torch.sin(theta)
        return self.d1.times(cos) + self.d2.times(sin), self.d2.times(cos) - self.d1.times(sin)

    def twice_mean(self) -> Vec3:
        """Return m in the symmetrised derivative of the turn by e, which is - turn (x) m / |e|."""
        over = 1 / (1 + self.start.dot(self.t))
        return self.t + (self.start + self.t).times(over)  # the second term is tt for the tangents `start` and t


class _ByTheta(NamedTuple):
    """Second derivatives with at least one angle: `e_tf` is by e and theta_f, `te_te` twice by theta_e."""

    e_te: Vec3
    f_te: Vec3
    e_tf: Vec3
    f_tf: Vec3
    te_te: Tensor
    te_tf: Tensor
    tf_tf: Tensor

    def turned(self, e: EdgeFrame, f: EdgeFrame) -> _ByTheta:
        """Return these derivatives plus the terms that come from the turns of the edges' transported frames."""
        return self._replace(
            e_tf=self.e_tf + e.turn.times(self.te_tf),
            e_te=self.e_te + e.turn.times(self.te_te),
            f_tf=self.f_tf + f.turn.times(self.tf_tf),
            f_te=self.f_te + f.turn.times(self.te_tf),
        )


@dataclass
class BendTwist:
    """Strains of bend-twist springs and what their derivatives need; see the module's table for the symbols."""

    kappa1: Tensor
    kappa2: Tensor
    tau: Tensor
    e: EdgeFrame
    f: EdgeFrame
    m1e: Vec3
    m2e: Vec3
    m1f: Vec3
    m2f: Vec3
    chi_inverse: Tensor
    tt: Vec3
    kb: Vec3
    follows: float  # 1: curvature is measured on half-way frames; 0: on the edges' own frames (`averaged`)

    def first(self) -> list[list[Tensor]]:
        """Return 3 lists (kappa1, kappa2, tau) of 8 derivatives by (e, f, theta_e, theta_f)."""
        half = 0.5
        kappa1 = self._curvature_gradient(self.kappa1, self.m2e.times(half), self.m2f.times(half))
        kappa2 = self._curvature_gradient(self.kappa2, self.m1e.times(-half), self.m1f.times(-half))
        one = torch.ones_like(self.tau)
        tau_e, tau_f = self._twist_gradient()
        return [kappa1, kappa2, [*tau_e.components(), *tau_f.components(), -one, one]]

    def _twist_gradient(self) -> tuple[Vec3, Vec3]:
        """Return the derivatives of the twist by e and f."""
        return (
            self.kb.times(0.5 * self.e.inverse) - self.e.turn,
            self.kb.times(0.5 * self.f.inverse) + self.f.turn,
        )

    def _curvature_gradient(self, kappa: Tensor, a_e: Vec3, a_f: Vec3) -> list[Tensor]:
        """Return the 8 derivatives of kappa = kb . (a_e + a_f), where a_e and a_f turn with the material frames."""
        g_e, g_f = self._directional(kappa, a_e + a_f)
        by_theta_e = self.kb.dot(self.e.t.cross(a_e))
        by_theta_f = self.kb.dot(self.f.t.cross(a_f))
        by_e = g_e.times(self.e.inverse) + self.e.turn.times(by_theta_e)
        by_f = g_f.times(self.f.inverse) + self.f.turn.times(by_theta_f)
        return [*by_e.components(), *by_f.components(), by_theta_e, by_theta_f]

    def _directional(self, kappa: Tensor, a: Vec3) -> tuple[Vec3, Vec3]:
        """Return d(kb . a) by e and f, times |e| and |f|, with frames transported from the current tangents."""
        spread = a.times(2 * self.chi_inverse)
        along = self.tt.times(kappa)
        return self.f.t.cross(spread) - along, -self.e.t.cross(spread) - along

    def second(self, w1: Tensor, w2: Tensor, w3: Tensor) -> list[Tensor]:
        """Return w1 d2(kappa1) + w2 d2(kappa2) + w3 d2(tau): the 36 entries of `PAIRS_8`.

        The weighted curvature is kb . (a_e + a_f) with a = (w1 m2 - w2 m1) / 2, so both curvatures cost one.
        """
        e, f, kb = self.e, self.f, self.kb
        a_e = self.m2e.times(0.5 * w1) - self.m1e.times(0.5 * w2)
        a_f = self.m2f.times(0.5 * w1) - self.m1f.times(0.5 * w2)
        kappa = kb.dot(a_e + a_f)
        over = kappa * self.chi_inverse
        g_e, g_f = self._directional(kappa, a_e + a_f)
        half_w3 = 0.5 * w3

        b_e, b_f = e.t.cross(a_e), f.t.cross(a_f)
        k_te, k_tf = kb.dot(b_e), kb.dot(b_f)
        mixed = self._by_theta(kappa, a_e, a_f, b_e, b_f, k_te, k_tf)

        # on one edge: curvature and twist share kb (x) (something), so they are summed before the outer product
        along_kb = kb.times(kappa * (self.follows / 16))
        h_ee = self._same_edge(e, g_e, a_e + along_kb, over, half_w3)
        h_ff = self._same_edge(f, g_f, a_f + along_kb, over, half_w3)
        h_ef = self._between_edges(g_e, g_f, a_e + a_f, along_kb, over, half_w3)

        # the turn of the transported frames enters through theta
        turned = mixed.turned(e, f)
        h_ee = _turned(h_ee, e, mixed.e_te, mixed.te_te, k_te - w3)
        h_ff = _turned(h_ff, f, mixed.f_tf, mixed.tf_tf, k_tf + w3)
        h_ef = _turned_between(h_ef, e, f, turned.e_tf, mixed.f_te)
        return _entries(h_ee, h_ef, h_ff, turned)

    def _by_theta(
        self, kappa: Tensor, a_e: Vec3, a_f: Vec3, b_e: Vec3, b_f: Vec3, kappa_te: Tensor, kappa_tf: Tensor
    ) -> _ByTheta:
        """Return the second derivatives of kappa = kb . (a_e + a_f) by theta: directors turn about the tangents.

        With half-way frames they include the part of kappa/4 grad tau (x) grad tau that is not in `along_kb`; grad tau
        is (kb/2|e|, kb/2|f|, -1, 1).

        Parameters
        ----------
        b_e, b_f : derivatives of a_e and a_f by their angles.
        kappa_te, kappa_tf : derivatives of kappa by the angles.
        """
        e, f, tt, double = self.e, self.f, self.tt, 2 * self.chi_inverse
        quarter = kappa * (0.25 * self.follows)
        eighth = self.kb.times(0.5 * quarter)
        by_e, by_f = eighth.times(e.inverse), eighth.times(f.inverse)
        return _ByTheta(
            e_te=(f.t.cross(b_e).times(double) - tt.times(kappa_te)).times(e.inverse) - by_e,
            f_te=(a_e.times(double) - tt.times(kappa_te)).times(f.inverse) - by_f,
            e_tf=(a_f.times(-double) - tt.times(kappa_tf)).times(e.inverse) + by_e,
            f_tf=(e.t.cross(b_f).times(-double) - tt.times(kappa_tf)).times(f.inverse) + by_f,
            te_te=-self.kb.dot(a_e) + quarter,
            te_tf=-quarter,
            tf_tf=-self.kb.dot(a_f) + quarter,
        )

    def _same_edge(self, edge: EdgeFrame, g: Vec3, a: Vec3, over: Tensor, half_w3: Tensor) -> list[Tensor]:
        """Return the block of one edge: [-2 sym(tt g) - over (I - t t) + sym(kb (a - w3/2 (t + tt)))] / |e|^2."""
        square = edge.inverse * edge.inverse
        bending = outer_sym(self.tt, g)
        binormal = outer_sym(self.kb, a - (edge.t + self.tt).times(half_w3))
        projector = outer_sym(edge.t, edge.t)
        block = []
        for k, (i, j) in enumerate(PAIRS_3):
            entry = binormal[k] - 2 * bending[k] + over * projector[k]
            block.append((entry - over if i == j else entry) * square)
        return block

    def _between_edges(
        self, g_e: Vec3, g_f: Vec3, a: Vec3, along_kb: Vec3, over: Tensor, half_w3: Tensor
    ) -> list[Tensor]:
        """Return the 9 entries (row e, column f) of the block between the edges."""
        te, tf, tt = self.e.t.components(), self.f.t.components(), self.tt.components()
        kb, part = self.kb.components(), along_kb.components()
        scale = self.e.inverse * self.f.inverse
        row = (g_e + self.kb.times(half_w3)).components()
        column = g_f.components()
        # -[D]x of the curvature and +[t_e]x of the twist, as one cross-product matrix
        sx, sy, sz = (self.e.t.times(half_w3) - a).times(2 * self.chi_inverse).components()
        cross = (None, -sz, sy, sz, None, -sx, -sy, sx, None)
        block = []
        for i in range(3):
            for j in range(3):
                entry = kb[i] * part[j] - tt[i] * column[j] - row[i] * tt[j] - over * te[i] * tf[j]
                skew = cross[3 * i + j]
                entry = entry - over if skew is None else entry + skew
                block.append(entry * scale)
        return block


def _entries(h_ee: list[Tensor], h_ef: list[Tensor], h_ff: list[Tensor], by_theta: _ByTheta) -> list[Tensor]:
    """Return the 36 entries of `PAIRS_8` from the blocks of the edges and the derivatives by theta."""
    ex, ey, ez = by_theta.e_te.components()
    fx, fy, fz = by_theta.f_tf.components()
    gx, gy, gz = by_theta.e_tf.components()
    kx, ky, kz = by_theta.f_te.components()
    return [
        h_ee[0], h_ee[1], h_ee[2], h_ef[0], h_ef[1], h_ef[2], ex, gx,
        h_ee[3], h_ee[4], h_ef[3], h_ef[4], h_ef[5], ey, gy,
        h_ee[5], h_ef[6], h_ef[7], h_ef[8], ez, gz,
        h_ff[0], h_ff[1], h_ff[2], kx, fx,
        h_ff[3], h_ff[4], ky, fy,
        h_ff[5], kz, fz,
        by_theta.te_te, by_theta.te_tf,
        by_theta.tf_tf,
    ]  # fmt: skip


def _turned(block: list[Tensor], edge: EdgeFrame, mixed: Vec3, theta_theta: Tensor, by_theta: Tensor) -> list[Tensor]:
    """Return an edge's own block plus the terms that come from the turn of its transported frame."""
    rows = outer_sym(
        edge.turn, mixed.times(2) + edge.turn.times(theta_theta) - edge.twice_mean().times(by_theta * edge.inverse)
    )
    return [b + r for b, r in zip(block, rows, strict=True)]


def _turned_between(
    block: list[Tensor], e: EdgeFrame, f: EdgeFrame, e_by_theta_f: Vec3, f_by_theta_e: Vec3
) -> list[Tensor]:
    """Return the 9 entries between the edges plus the terms that come from the turns of both transported frames."""
    pairs = [(i, j) for i in range(3) for j in range(3)]
    et, ft, a, b = (v.components() for v in (e.turn, f.turn, e_by_theta_f, f_by_theta_e))
    return [h + a[i] * ft[j] + et[i] * b[j] for h, (i, j) in zip(block, pairs, strict=True)]


def reference_twist(carried: Vec3, director: Vec3, tangent: Vec3, previous: Tensor) -> Tensor:
    """Return the angle [rad] from one edge's reference director, carried to the next edge, to that edge's own director.

    It is about the tangent of the next edge, on the branch nearest to the previous angle: there are no jumps by 2 pi.
    """
    angle = torch.atan2(carried.cross(director).dot(tangent), carried.dot(director))
    return angle + 2 * math.pi * torch.round((previous - angle) * (0.5 / math.pi))


def bend_twist(
    e: Vec3,
    f: Vec3,
    theta_e: Tensor,
    theta_f: Tensor,
    start_e: Vec3,
    start_f: Vec3,
    anchor_e: Vec3,
    anchor_f: Vec3,
    previous_twist: Tensor,
    averaged: bool = False,
    in_plane: bool = False,
) -> BendTwist:
    """Return the strains of bend-twist springs.

    Parameters
    ----------
    e, f : edge vectors that enter and leave the centre node.
    theta_e, theta_f : angles of the material frames against the reference frames.
    start_e, start_f, anchor_e, anchor_f : anchors of the frames: unit tangents and unit directors.
    previous_twist : reference twist at the anchors; the new one is taken on the same branch (no jumps by 2 pi).
    averaged : measure curvature on the mean of the two material frames instead of the frame half-way between them.
    in_plane : whether all edges lie in one plane, with directors across it, or in it on one side of their edges; then
        the reference twist does not change.
    """
    edge_e = EdgeFrame.of(e, start_e, anchor_e)
    edge_f = EdgeFrame.of(f, start_f, anchor_f)
    cosine = edge_e.t.dot(edge_f.t)
    chi_inverse = 1 / (1 + cosine)
    axis = edge_e.t.cross(edge_f.t)
    kb = axis.times(2 * chi_inverse)
    tt = (edge_e.t + edge_f.t).times(chi_inverse)
    twist = previous_twist
    if not in_plane:
        d = edge_e.d1
        carried = d.times(cosine) + axis.cross(d) + axis.times(axis.dot(d) * chi_inverse)
        twist = reference_twist(carried, edge_f.d1, edge_f.t, previous_twist)
    tau = theta_f - theta_e + twist
    follows = 0.0 if averaged else 1.0
    half = tau * (0.5 * follows)
    m1e, m2e = edge_e.directors(theta_e + half)
    m1f, m2f = edge_f.directors(theta_f - half)
    kappa1, kappa2 = 0.5 * kb.dot(m2e + m2f), -0.5 * kb.dot(m1e + m1f)
    return BendTwist(
        kappa1=kappa1,
        kappa2=kappa2,
        tau=tau,
        e=edge_e,
        f=edge_f,
        m1e=m1e,
        m2e=m2e,
        m1f=m1f,
        m2f=m2f,
        chi_inverse=chi_inverse,
        tt=tt,
        kb=kb,
        follows=follows,
    )
