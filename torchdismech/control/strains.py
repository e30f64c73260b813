"""Strains that are controlled: their choice, their measurement, and the natural strains that actuate them.

All conversion of units is here. The library has curvatures and twists integrated over the Voronoi length of a spring
(dimensionless, rad) and rest lengths of edges (m). Controllers have

==============  ==================================  =======  ======================================================
field           of                                  unit     sets
==============  ==================================  =======  ======================================================
stretch         rod edges, l / l0 - 1               1        rest_length = l0 (1 + stretch)
kappa1, kappa2  springs, curvature                  1/m      natural_curvature = undeformed + curvature * Voronoi
twist           springs, twist per length           rad/m    natural_twist = undeformed + twist * Voronoi
hinge_angle     edges between two triangles         rad      natural_hinge_angle = undeformed + angle
==============  ==================================  =======  ======================================================

all relative to the undeformed shape: rest lengths l0, and curvatures, twists and angles of the robot as built. Angles
are those between the normals of two triangles, however these bend.
"curvature" stands for kappa1 and kappa2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.control.elements import ALIASES, ELEMENTS, UNITS, chosen_elements, element_counts, without_aliases
from torchdismech.control.neighbours import along_rods
from torchdismech.control.shapes import state_of_shape
from torchdismech.elastic import BendTwistStencil, StretchStencil
from torchdismech.elastic.natural import refuse_curvatures_without_angles
from torchdismech.errors import InputError, real_number, refuse_other_kind, refuse_other_model
from torchdismech.geometry.checks import Indices, distinct_indices
from torchdismech.geometry.shells import hinge_angles
from torchdismech.model import Model
from torchdismech.robot.state import Control, State
from torchdismech.values import tensor_of

__all__ = ["Strains"]

# elastic terms that give the strains; hinge angles are computed from positions, with any kind of shell bending
TERMS = {"rod edges": "stretch", "springs": "bend_twist"}


class Strains(nn.Module):
    """A choice of strains of a robot as one vector (B, m): field after field, each with its elements in order.

    Parameters
    ----------
    model : the robot.
    fields : names from the module's table.
    elements : by field, indices or masks of edges, springs or hinges; those of "curvature" count for kappa1 and kappa2.
        By default all whose strain can change: not those between clamped nodes, and in a planar robot not the curvature
        out of its plane.

    Attributes
    ----------
    parts : slice of each field in the vector.

    Raises
    ------
    InputError
        A model of another kind, such as a pneumatic arm; the robot has no such elements, an index does not exist, a
        strain cannot change.
    """

    undeformed: Tensor
    _hinges: Tensor

    def __init__(
        self,
        model: Model,
        fields: Sequence[str] = ("stretch", "curvature"),
        elements: Mapping[str, Indices] | None = None,
    ):
        super().__init__()
        refuse_other_model("control.Strains", model, Model)
        requested = without_aliases(fields, elements or {})
        chosen = {name: chosen_elements(model, name, index, fields) for name, index in requested.items()}
        chosen = {name: index for name, index in chosen.items() if len(index)}
        if not chosen:
            raise InputError(f"fields: no strain of {', '.join(fields)} can change in this robot")
        self.elements, self.counts = chosen, element_counts(model)
        self.parts, start = {}, 0
        for name, index in chosen.items():
            self.register_buffer(f"_{name}", torch.as_tensor(index, device=model.device), persistent=False)
            self.parts[name] = slice(start, start + len(index))
            start += len(index)
        self.size = start
        hinges = model.hinges[chosen.get("hinge_angle", [])]
        self.register_buffer("_hinges", torch.as_tensor(hinges, device=model.device), persistent=False)
        self.terms = sorted({TERMS[ELEMENTS[name]] for name in chosen if name != "hinge_angle"})
        self._refuse_lost_curvatures(model)
        rest_state = model.rest_state(1)
        self.register_buffer("undeformed", torch.zeros(start, dtype=model.dtype, device=model.device))
        with torch.no_grad():
            absolute = self._absolute(rest_state, model)[0]
            for name, part in self.parts.items():
                if name != "stretch":
                    self.undeformed[part] = absolute[part]

    def __len__(self) -> int:
        return self.size

    @property
    def units(self) -> dict[str, str]:
        """Units by field."""
        return {name: UNITS[name] for name in self.parts}

    def index(self, name: str) -> Tensor:
        """Return the indices (k,) of a field's elements."""
        return getattr(self, f"_{name}")

    def extra_repr(self) -> str:
        """Return fields, counts and units, for print."""
        return ", ".join(f"{name}: {len(index)} [{UNITS[name]}]" for name, index in self.elements.items())

    def spread(self, values: Mapping[str, float], label: str) -> Tensor:
        """Return numbers by field as a vector (m,), infinite for others; "curvature" means kappa1 and kappa2."""
        vector = torch.full((self.size,), torch.inf, dtype=self.undeformed.dtype, device=self.undeformed.device)
        refuse_other_kind(label, values, Mapping, 'numbers by field, such as {"stretch": 0.5}')
        for field, number in values.items():
            names, value = self._controlled(field, label), real_number(number, f"{label}: {field}")
            if not value >= 0:
                raise InputError(f"{label}: {field}: expected 0 or more, got {value}")
            for name in names:
                vector[self.parts[name]] = value
        return vector

    def places(self, elements: Mapping[str, Indices], label: str) -> list[int]:
        """Return the positions in the vector of elements that are given by field, as indices or masks.

        "curvature" counts for kappa1 and kappa2. Refused are fields and elements that are not controlled, an element
        that occurs twice, and no elements at all.
        """
        positions = [
            place
            for field, chosen in elements.items()
            for name in self._controlled(field, label)
            for place in self._places_in(name, chosen, label)
        ]
        if not positions:
            raise InputError(f"{label}: expected elements by field, got none; leave it out where all are meant")
        if len(set(positions)) < len(positions):
            raise InputError(f"{label}: expected each element once, but fields have some in common")
        return sorted(positions)

    def _controlled(self, field: str, label: str) -> list[str]:
        """Return the controlled fields that a field or alias stands for; refuse one without any."""
        names = [name for name in ALIASES.get(field, (field,)) if name in self.parts]
        if not names:
            raise InputError(f"{label}: no field {field!r} is controlled; there are {', '.join(self.parts)}")
        return names

    def _places_in(self, name: str, chosen: Indices, label: str) -> list[int]:
        """Return the positions in the vector of elements of one field."""
        kind, controlled = ELEMENTS[name], self.elements[name]
        index = distinct_indices(chosen, self.counts[kind], f"{label}: {name}: {kind}")
        if len(lost := np.setdiff1d(index, controlled)):
            raise InputError(f"{label}: {name}: element {lost[0]} is not among those controlled")
        return (self.parts[name].start + np.searchsorted(controlled, index)).tolist()

    def refuse_another(self, model: Model) -> None:
        """Refuse a robot whose numbers of elements differ from those of the robot that these strains were made for.

        Where hinge angles are controlled, natural curvatures of triangles that these cannot represent are refused, too.
        """
        refuse_other_model("control.Strains", model, Model)
        for kind, count in element_counts(model).items():
            if count != self.counts[kind]:
                raise InputError(f"strains: are those of a robot with {self.counts[kind]} {kind}, this one has {count}")
        self._refuse_lost_curvatures(model)

    def _refuse_lost_curvatures(self, model: Model) -> None:
        if "hinge_angle" in self.parts:
            refuse_curvatures_without_angles(model.body, model.terms)

    def neighbours(self, model: Model) -> Tensor:
        """Return the positions (2, m) of each strain's neighbours before and after along its rod, else its own."""
        places = np.tile(np.arange(self.size), (2, 1))
        for name, part in self.parts.items():
            places[:, part] = part.start + along_rods(model.body, ELEMENTS[name], self.elements[name])
        return torch.as_tensor(places, device=self.undeformed.device)

    # ---- measuring -------------------------------------------------------------------------------------------------

    def measured(self, state: State, model: Model) -> Tensor:
        """Return the strains (B, m) at a state; they can be differentiated by the state and the model's tensors."""
        return self._absolute(state, model) - self.undeformed

    def of_shape(self, model: Model, positions: Tensor, directors: Tensor | None = None) -> Tensor:
        """Return the strains (B, m) of a robot in another shape, or (m,) of a single one.

        A shape does not tell whole turns between neighbouring sections: the twist of a spring is the one within half a
        turn of the undeformed.

        Parameters
        ----------
        positions : of the nodes (N, 3) or (B, N, 3) [m].
        directors : (E, 3) or (B, E, 3) directions of the sections' m1 on the rod edges, as `model.directors` at rest;
            of any length, and their component along the edge is ignored. By default, and on edges that belong to no
            rod, each edge's section is carried from the rest shape by the smallest rotation of the edge.

        Raises
        ------
        InputError
            Vectors of other shapes, numbers that are not finite, an edge without length, edges that fold back on each
            other, a director along its edge; for a planar robot, a shape out of its plane and turned sections.
        """
        state = state_of_shape(model, positions, directors)
        strains = self.measured(state, model)
        self._refuse_folded(strains.detach())
        if "twist" in self.parts:
            part, full = self.parts["twist"], 2 * torch.pi / self._voronoi(model, "twist")
            turns = torch.zeros_like(strains)
            turns[:, part] = full * torch.round(strains[:, part].detach() / full)
            strains = strains - turns
        return strains[0] if tensor_of(positions).dim() == 2 else strains

    def _refuse_folded(self, strains: Tensor) -> None:
        """Refuse strains (B, m) that are not finite, which come from edges that fold back on each other."""
        lost = ~strains.isfinite().all(0)
        for name, part in self.parts.items():
            if bool(lost[part].any()):
                element = int(self.index(name)[lost[part]][0])
                raise InputError(
                    f"target: positions: {name} of number {element} of the {ELEMENTS[name]} is not finite there: "
                    "expected a shape in which no edges fold back on each other"
                )

    def _absolute(self, state: State, model: Model) -> Tensor:
        """Return the strains (B, m) before those of the undeformed shape are subtracted (zero for stretch)."""
        values = model.mechanics.strains(state, Control(), self.terms)
        columns = []
        for name in self.parts:
            if name == "hinge_angle":
                columns.append(hinge_angles(state.positions, self._hinges))
                continue
            value = values["tau" if name == "twist" else name][:, self.index(name)]
            columns.append(value / self._voronoi(model, name) if ELEMENTS[name] == "springs" else value)
        rows = max(len(column) for column in columns)  # with rest lengths per robot, one state has strains for each
        return torch.cat([column.expand(rows, -1) for column in columns], dim=1)

    # ---- actuating -------------------------------------------------------------------------------------------------

    def natural(self, model: Model, batch: int, control: Control | None = None) -> Tensor:
        """Return the natural strains (B, m) relative to the undeformed shape: the control's, else the model's."""
        set_control = Control() if control is None else control
        natural = model.natural_strains(batch).replace(**set_control.tensors())
        columns = []
        for name in self.parts:
            if name == "stretch":
                columns.append(self._natural_stretch(set_control, model, batch))
            else:
                value = _natural_values(natural, name)[:, self.index(name)]
                columns.append(value / self._voronoi(model, name) - self.undeformed[self.parts[name]])
        return torch.cat(columns, dim=1)

    def set_by(self, strains: Tensor, control: Control, model: Model) -> Control:
        """Return a control with natural strains (B, m) set.

        Elements that are not among these keep the control's natural strains, or the model's.
        """
        default = model.natural_strains(len(strains))
        changes: dict[str, Tensor] = {}
        if "stretch" in self.parts:
            lengths = _rest_length(model, len(strains))
            value = lengths[:, self.index("stretch")] * (1 + strains[:, self.parts["stretch"]])
            changes["rest_length"] = _put(_set_or_default(control.rest_length, lengths), self.index("stretch"), value)
        angles = {name: self._angle(strains, name, model) for name in self.parts if name != "stretch"}
        if "kappa1" in angles or "kappa2" in angles:
            base = _set_or_default(control.natural_curvature, default.natural_curvature)
            columns = [
                _put(base[..., k], self.index(name), angles[name]) if name in angles else base[..., k]
                for k, name in enumerate(("kappa1", "kappa2"))
            ]
            changes["natural_curvature"] = torch.stack(columns, dim=-1)
        for name, field in (("twist", "natural_twist"), ("hinge_angle", "natural_hinge_angle")):
            if name in angles:
                base = _set_or_default(getattr(control, field), getattr(default, field))
                changes[field] = _put(base, self.index(name), angles[name])
        return control.replace(**changes)

    def _natural_stretch(self, control: Control, model: Model, batch: int) -> Tensor:
        """Return the natural stretches (B, edges) by a control's rest lengths; zero where it sets none."""
        if control.rest_length is None:
            return self.undeformed.new_zeros(batch, len(self.elements["stretch"]))
        return (control.rest_length / _rest_length(model, batch) - 1)[:, self.index("stretch")]

    def _angle(self, strains: Tensor, name: str, model: Model) -> Tensor:
        """Return natural curvatures, twists or angles (B, elements) in the library's units."""
        part = self.parts[name]
        return (strains[:, part] + self.undeformed[part]) * self._voronoi(model, name)

    def _voronoi(self, model: Model, name: str) -> Tensor | float:
        """Return the Voronoi lengths (.., elements) [m] over which curvature and twist are integrated; 1 for hinges."""
        if name == "hinge_angle":
            return 1.0
        stencil = model.term("bend_twist").stencil
        assert isinstance(stencil, BendTwistStencil)
        return stencil.voronoi[self.index(name)]


def _rest_length(model: Model, batch: int) -> Tensor:
    """Return the rest lengths (B, E) of the model's rod edges [m]."""
    stencil = model.term("stretch").stencil
    assert isinstance(stencil, StretchStencil)
    return stencil.rest_length.expand(batch, -1)


def _set_or_default(set_value: Tensor | None, default: Tensor | None) -> Tensor:
    value = default if set_value is None else set_value
    assert value is not None  # the robot has such elements
    return value


def _put(base: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """Return `base` (B, K) with the columns `index` replaced by `values`."""
    return values if len(index) == base.shape[1] else base.index_copy(1, index, values)


def _natural_values(control: Control, name: str) -> Tensor:
    if name in ("kappa1", "kappa2"):
        assert control.natural_curvature is not None
        return control.natural_curvature[..., int(name == "kappa2")]
    value = control.natural_twist if name == "twist" else control.natural_hinge_angle
    assert value is not None
    return value
