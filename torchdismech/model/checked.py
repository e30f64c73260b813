"""A model that checks what it is given before a step, and that users' hooks do what they claim; see `refusals`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch

from torchdismech.contact.pairs.self_contact import SelfContacts
from torchdismech.elastic import ElasticTerm
from torchdismech.elastic.natural import continuum_triangles, natural_strain
from torchdismech.errors import InputError, refuse_other_dtype
from torchdismech.forces import Force
from torchdismech.model.per_robot import refuse_misnamed
from torchdismech.model.planar import CURVATURES, PlanarRobot
from torchdismech.model.refusals import refuse_other_parts, refuse_other_state, refuse_other_values
from torchdismech.model.saving import SavedModel
from torchdismech.model.trials import try_hooks
from torchdismech.robot.body import Body
from torchdismech.robot.kinematics import Frames
from torchdismech.robot.state import Control, State
from torchdismech.snapshot import Snapshot
from torchdismech.values import Place

__all__ = ["CheckedModel"]

TRIED = "hooks were tried"  # among what fits a model


class CheckedModel(SavedModel):
    """A model that refuses what does not belong to it, or does not do what it claims.

    A subclass lays its matrix out, and tries hooks before it is stepped.
    """

    body: Body
    frames: Frames
    terms: Sequence[ElasticTerm]
    forces: Sequence[Force]
    self_contacts: SelfContacts
    in_plane: PlanarRobot | None
    _laid_out: tuple[int, int]  # how many terms and forces the matrix is for
    _tried_in: dict[str, bool]  # see `_modes`

    @property
    @abstractmethod
    def batch(self) -> int | None:
        """Number of robots that the parameters are given for, or None where they serve any number."""

    @property
    @abstractmethod
    def places(self) -> dict[str, Place]:
        """Where the constants of the model stand, by name."""

    # ---- states and controls ---------------------------------------------------------------------------------

    def check_batch(self, state: State, control: Control, snapshot: Snapshot | None = None) -> None:
        """Refuse states and controls that do not belong to this model; `snapshot` is what it holds, if known."""
        if not isinstance(control, Control):
            raise InputError(f"control: expected a Control, got {type(control).__name__}")
        fitting = set() if snapshot is None else snapshot.fitting
        kind = state.kind
        if kind not in fitting:
            self._check_state(state)
            fitting.add(kind)
        self.check_control(control, state.batch, snapshot)
        if self.in_plane is not None:
            self.in_plane.refuse_motion(control, state.q)

    @torch.no_grad()
    def _check_state(self, state: State) -> None:
        """Refuse a state of another model, number of robots, dtype or device, and a model changed beyond use."""
        refuse_other_parts(self.terms, self.forces, self._laid_out)
        refuse_other_dtype("Model: dtype", self.body.nodes.dtype)
        refuse_other_state(state, self.body, self.terms, self.batch)
        if self.in_plane is not None and len(self.body.springs.nodes):
            bend_twist = next(term for term in self.terms if term.name == "bend_twist")
            own = {k: getattr(bend_twist, f"natural_{k}") for k in CURVATURES}
            self.in_plane.refuse_curvatures("Model: ", own)

    def check_control(self, control: Control, batch: int, snapshot: Snapshot | None = None) -> None:
        """Refuse a control that does not fit `batch` robots; `snapshot` is what the model holds, if that is known."""
        self._refuse_twist_in_plane(control, batch)  # before its shape is looked at
        kind, fitting = (batch, *control.kind), set() if snapshot is None else snapshot.fitting
        if kind not in fitting:
            shapes = self.body.control_shapes(batch, continuum_triangles(self.terms))
            control.check(shapes, self.body.nodes.dtype, self.body.nodes.device)
            fitting.add(kind)
        self._check_lengths_and_loads(control)
        refuse_other_values(control, self.places, batch)
        if control.values and self.in_plane is not None:
            self._refuse_values_out_of_plane(control, self.in_plane)

    def check_numbers(self, control: Control, state: State) -> None:
        """Refuse a control with numbers that robots cannot follow from a state."""
        self._refuse_twist_in_plane(control, state.batch)
        self._check_lengths_and_loads(control)
        if self.in_plane is not None:
            self.in_plane.refuse_motion(control, state.q)

    def _check_lengths_and_loads(self, control: Control) -> None:
        control.check_numbers()
        if self.in_plane is not None:
            self.in_plane.refuse_loads(control)

    def _refuse_twist_in_plane(self, control: Control, batch: int) -> None:
        if control.natural_twist is not None and self.in_plane is not None:
            own = natural_strain("natural_twist", self.body, self.terms, batch)
            self.in_plane.refuse_twist("Control.natural_twist", control.natural_twist, own)

    def _refuse_values_out_of_plane(self, control: Control, in_plane: PlanarRobot) -> None:
        """Refuse natural strains among the values of a control that a planar robot does not feel."""
        named = {name: control.values.get(f"bend_twist.natural_{name}") for name in (*CURVATURES, "tau")}
        if (twist := named.pop("tau")) is not None:
            own = getattr(*self.places["bend_twist.natural_tau"])
            in_plane.refuse_twist("Control.values['bend_twist.natural_tau']", twist, own.expand_as(twist))
        in_plane.refuse_curvatures("Control.values: ", named)

    # ---- users' forces and energies --------------------------------------------------------------------------

    def _try_hooks(self) -> None:
        """Refuse users' forces and energies that break their own claims, with modules in their present modes."""
        refuse_misnamed(self)  # before it is asked how many robots its tensors are for
        try_hooks(self, self.body, self.frames, [*self.terms], [*self.forces], [*self.self_contacts], self.batch)
        self._tried_in = self._modes()

    def try_hooks_in_other_modes(self, snapshot: Snapshot) -> None:
        """Try users' forces and energies again if modules are in other modes of training than when they were tried.

        Dropout, or a mean over the robots of a batch, acts in one of the two modes only. `snapshot` is what the model
        holds.
        """
        if TRIED not in snapshot.fitting:
            now = self._modes()
            if any(now.get(name, mode) != mode for name, mode in self._tried_in.items()):
                self._try_hooks()
            snapshot.fitting.add(TRIED)

    def _modes(self) -> dict[str, bool]:
        """Return which modules of forces, terms and contacts are trained, not evaluated, by their names."""
        owners = {"forces": self.forces, "terms": self.terms, "self_contacts": self.self_contacts}
        return {name: m.training for of, owner in owners.items() for name, m in owner.named_modules(prefix=of)}  # type: ignore[attr-defined]
