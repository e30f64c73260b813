"""`CheckedModel`: a model that checks states, controls and users' forces and energies before a step; see `refusals`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch

from torchdismech.contact.pairs.self_contact import SelfContacts
from torchdismech.elastic import ElasticTerm
from torchdismech.elastic.natural import continuum_triangles, natural_strain
from torchdismech.errors import refuse_other_dtype, refuse_other_kind
from torchdismech.forces import Force
from torchdismech.model.hooks import try_hooks
from torchdismech.model.per_robot import refuse_misnamed
from torchdismech.model.planar import CURVATURES, PlanarRobot
from torchdismech.model.refusals import refuse_other_parts, refuse_other_state, refuse_other_values
from torchdismech.model.saving import SavedModel
from torchdismech.robot.body import Body
from torchdismech.robot.kinematics import Frames
from torchdismech.robot.state import STATES, Control, State
from torchdismech.snapshot import Snapshot
from torchdismech.values import Place

__all__ = ["CheckedModel"]

TRIED = "hooks were tried"  # a key of `Snapshot.checked_keys`


class CheckedModel(SavedModel):
    """A model that refuses states and controls that do not fit it, and users' code that breaks its own claims.

    *Hooks* are the forces, energies and laws that users write. A subclass has to set `_laid_out`, and to call
    `_try_hooks` before it is stepped.
    """

    body: Body
    frames: Frames
    terms: Sequence[ElasticTerm]
    forces: Sequence[Force]
    self_contacts: SelfContacts
    in_plane: PlanarRobot | None
    _laid_out: tuple[int, int]  # numbers of terms and forces for which the matrix was laid out
    _tried_in: dict[str, bool]  # the result of `_modes` when hooks were last tried

    @property
    @abstractmethod
    def batch(self) -> int | None:
        """Number of robots that the parameters are given for; None where they serve any number."""

    @property
    @abstractmethod
    def places(self) -> dict[str, Place]:
        """The constants of the model by name, each as (module, attribute)."""

    # ---- states and controls ---------------------------------------------------------------------------------

    def check_batch(self, state: State, control: Control, snapshot: Snapshot | None = None) -> None:
        """Refuse a state and control that do not fit; with a `snapshot`, kinds seen before are not checked again."""
        # the two calls below would take a hundredth of a step of one robot
        if not (isinstance(state, State) and isinstance(control, Control)):
            refuse_other_kind("state", state, State, STATES)  # type: ignore[unreachable]
            refuse_other_kind("control", control, Control, "a Control")
        checked_keys = set() if snapshot is None else snapshot.checked_keys
        kind = state.kind
        if kind not in checked_keys:
            self._check_state(state)
            checked_keys.add(kind)
        self.check_control(control, state.batch, snapshot)
        if self.in_plane is not None:
            self.in_plane.refuse_motion(control, state.q)

    @torch.no_grad()
    def _check_state(self, state: State) -> None:
        """Refuse a state that does not fit, and a model whose parts, dtype or curvatures were changed beyond use."""
        refuse_other_parts(self.terms, self.forces, self._laid_out)
        refuse_other_dtype("Model: dtype", self.body.nodes.dtype)
        refuse_other_state(state, self.body, self.terms, self.batch)
        if self.in_plane is not None and len(self.body.springs.nodes):
            bend_twist = next(term for term in self.terms if term.name == "bend_twist")
            natural = {k: getattr(bend_twist, f"natural_{k}") for k in CURVATURES}
            self.in_plane.refuse_curvatures("Model: ", natural)

    def check_control(self, control: Control, batch: int, snapshot: Snapshot | None = None) -> None:
        """Refuse a control that does not fit `batch` robots; with a `snapshot`, known kinds are not checked again."""
        self._refuse_twist_in_plane(control, batch)  # before its shape: a twist of any shape is refused as such
        kind, checked_keys = (batch, *control.kind), set() if snapshot is None else snapshot.checked_keys
        if kind not in checked_keys:
            shapes = self.body.control_shapes(batch, continuum_triangles(self.terms))
            control.check(shapes, self.body.nodes.dtype, self.body.nodes.device)
            checked_keys.add(kind)
        self._check_lengths_and_loads(control)
        refuse_other_values(control, self.places, batch)
        if control.values and self.in_plane is not None:
            self._refuse_values_out_of_plane(control, self.in_plane)

    def check_numbers(self, control: Control, state: State) -> None:
        """Refuse a control whose numbers robots cannot follow from a state; its shapes have been checked before."""
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
            natural = natural_strain("natural_twist", self.body, self.terms, batch)
            self.in_plane.refuse_twist("Control.natural_twist", control.natural_twist, natural)

    def _refuse_values_out_of_plane(self, control: Control, in_plane: PlanarRobot) -> None:
        """Refuse natural strains in `Control.values` that would bend or twist a planar robot out of its plane."""
        named = {name: control.values.get(f"bend_twist.natural_{name}") for name in (*CURVATURES, "tau")}
        if (twist := named.pop("tau")) is not None:
            natural = getattr(*self.places["bend_twist.natural_tau"])
            in_plane.refuse_twist("Control.values['bend_twist.natural_tau']", twist, natural.expand_as(twist))
        in_plane.refuse_curvatures("Control.values: ", named)

    # ---- users' forces and energies --------------------------------------------------------------------------

    def _try_hooks(self) -> None:
        """Refuse users' forces and energies that break their own claims, in the modules' present training modes."""
        refuse_misnamed(self)  # before `batch` is read, which relies on `per_robot`
        try_hooks(self)
        self._tried_in = self._modes()

    def try_hooks_in_other_modes(self, snapshot: Snapshot) -> None:
        """Try users' forces and energies again if modules are in other training modes than at the last trial.

        Dropout, or a mean over the robots of a batch, acts in one of the two modes only. `snapshot` is of the model,
        and remembers that this has been done.
        """
        if TRIED not in snapshot.checked_keys:
            now = self._modes()
            if any(now.get(name, mode) != mode for name, mode in self._tried_in.items()):
                self._try_hooks()
            snapshot.checked_keys.add(TRIED)

    def _modes(self) -> dict[str, bool]:
        """Return whether each module of forces, terms and contacts is in training mode, by its name."""
        owners = {"forces": self.forces, "terms": self.terms, "self_contacts": self.self_contacts}
        return {name: m.training for of, owner in owners.items() for name, m in owner.named_modules(prefix=of)}  # type: ignore[attr-defined]
