"""The tables of a config for a robot from a scene: the scene, its markers, its drives, and how windows start."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from training.config.base import Identifier, Name, NamedCode, Table, Vector

__all__ = ["Drive", "Drives", "Marker", "Markers", "SceneRobot", "Start"]

OF_FITTED = ("spread", "frames", "rounds")  # fields of [start] that only fitted velocities have
Index = Annotated[int, Field(ge=0, lt=2**31)]
Share = Annotated[float, Field(ge=0, le=1)]
Gain = Annotated[float, Field(ge=-1e15, le=1e15)]


class SceneRobot(Table):
    """A robot that a scene file describes; the scene's [simulation] says how steps are taken.

    Attributes
    ----------
    scene : the file, relative to the working directory. The time between two frames of the recordings has to be a whole
        number of its steps.
    overrides : values in place of the scene's by dotted key, such as {"simulation.dt" = 5e-3}.
    gripped : clamped nodes that move as the markers at them were recorded, also in the frames to be predicted. There
        may be none where clamps are moved by poses.
    """

    scene: Name
    overrides: dict[str, Any] = {}
    gripped: list[Index] = []


class Marker(Table):
    """Place of a marker: exactly one of a node, an edge, a triangle or a clamp.

    Attributes
    ----------
    node : at this node.
    edge : on this rod edge (numbers as `torchdismech check` counts them), the share `at` of the way along it.
    triangle : on this triangle, at the mean of its three corners by `weights`, which add up to 1.
    clamp : fixed to this clamp: at the mean of its nodes, plus `offset`.
    offset : vector to the marker from there [m]: on an edge in its material frame (along tangent, first and second
        director: a disc on a rod), on a triangle its height alone as [0, 0, height], at a clamp in the world's axes at
        rest.
    """

    node: Index | None = None
    edge: Index | None = None
    triangle: Index | None = None
    clamp: Index | None = None
    at: Share = 0.5
    weights: Annotated[list[Share], Field(min_length=3, max_length=3)] | None = None
    offset: Vector | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Marker:
        given = [name for name in ("node", "edge", "triangle", "clamp") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"expected one of node, edge, triangle, clamp, got {' and '.join(given) or 'none'}")
        if (self.weights is None) == (self.triangle is not None):
            raise ValueError("weights belong to a triangle, and a triangle needs them")
        if self.weights is not None and abs(sum(self.weights) - 1) > 1e-6:
            raise ValueError(f"weights: expected three that add up to 1, got {self.weights}")
        if self.node is not None and self.offset is not None:
            raise ValueError("offset: a node has no directions: name an edge, a triangle or a clamp")
        if self.edge is None and self.changed("at"):
            raise ValueError("at: is a place along an edge: name that, or leave it out")
        if self.triangle is not None and self.offset is not None and any(self.offset[:2]):
            raise ValueError("offset: expected [0, 0, height above the triangle]: weights place it along the triangle")
        return self


class Markers(Table):
    """The recordings' markers, in their order, and the frame that they were recorded in.

    Attributes
    ----------
    points : where each marker sits; without it, at all nodes in their order.
    nodes : the nodes that markers sit at, as a short form of `points`.
    position : of the scene's origin in the recordings' frame [m]. May be trained, as the constant "markers.position".
    rotation : of the scene's axes in the recordings' frame, axis times angle [rad]. May be trained, as the constant
        "markers.rotation".
    """

    points: Annotated[list[Marker], Field(min_length=1)] | None = None
    nodes: Annotated[list[Index], Field(min_length=1)] | None = None
    position: Vector = [0.0, 0.0, 0.0]
    rotation: Vector = [0.0, 0.0, 0.0]

    @model_validator(mode="after")
    def _points_or_nodes(self) -> Markers:
        if self.points is not None and self.nodes is not None:
            raise ValueError("expected points or nodes, got both")
        return self


class Drive(Table):
    """A map from columns of the recordings to what they set in each step: linear, or a module of the user's.

    Attributes
    ----------
    sets : a field of `torchdismech.Control` ("natural_curvature", "rest_length", "pose", "force", ...), or a constant
        of the model by name ("Pressure.pressure"). A pose is six numbers for each clamp, moved from rest: displacement
        [m], axis times angle [rad]; with `relative = false` seven: position, quaternion (w, x, y, z).
    columns : names of the columns that are read; by default all of the recording, in the order of `data.inputs`.
    elements : flat indices of the elements that are set; by default all.
    gain : matrix of the linear map, a row for each element with a number for each column; a single number where there
        is one of each; by default zeros, which are refused where nothing trains them. The constants "NAME.gain" and
        "NAME.offset" may be trained.
    offset : constant part of the linear map, one number for all elements or one for each.
    relative : whether the result is added to the model's own value, or replaces it.
    module : "file.py:Name", an `nn.Module` that is called with inputs (B, F, C) and time (B, F) [s] of whole windows
        and returns (B, F, elements). Its parameters are trained with the group "learned".
    options : arguments of the module's constructor, after the numbers of columns and of elements.
    """

    sets: Name
    columns: Annotated[list[Name], Field(min_length=1)] | None = None
    elements: Annotated[list[Index], Field(min_length=1)] | None = None
    gain: Gain | list[list[Gain]] | None = None
    offset: Gain | list[Gain] = 0.0
    relative: bool = True
    module: NamedCode | None = None
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _map_or_module(self) -> Drive:
        if self.module is not None and self.gain is not None:
            raise ValueError("gain belongs to a linear map: leave it out, or leave out module")
        if self.module is not None and self.offset != 0.0:
            raise ValueError("offset belongs to a linear map: leave it out, or leave out module")
        if self.module is None and self.options:
            raise ValueError("options are for a module: leave them out")
        return self

    @property
    def idle(self) -> bool:
        """Whether this map leaves what it would set as it is, unless its gain or offset is trained."""
        if self.module is not None or not self.relative:
            return False
        gain = self.gain if isinstance(self.gain, list) else [[self.gain or 0.0]]
        offset = self.offset if isinstance(self.offset, list) else [self.offset]
        return not any(offset) and not any(number for row in gain for number in row)


class Start(Table):
    """The state in which predictions of recordings, and of windows of them, start.

    Attributes
    ----------
    state : "rest": as the scene describes the robot; "settled": in the equilibrium under the first frame's inputs;
        "measured": all nodes have markers, positions and velocities come from two frames.
    velocity : "zero", or "fitted": the velocities of all free nodes at the start of each recording are found along with
        the constants (train the group "starts").
    spread : standard deviation of the prior of fitted velocities [m/s].
    frames : number of first frames to which the starts of recordings that are not trained on are fitted (with constants
        as they are); errors count from there on.
    rounds : steps of the optimiser for these starts at each look.
    warm_up : number of first frames of each window that do not count in the loss: windows start in the middle of a
        recording at an equilibrium, which the robot was not at.
    load_steps : number of load steps in the search for the equilibrium.
    """

    state: Literal["rest", "settled", "measured"] = "rest"
    velocity: Literal["zero", "fitted"] = "zero"
    spread: float = Field(0.1, gt=0, le=1e3)
    frames: int = Field(20, ge=1, le=100_000)
    rounds: int = Field(20, ge=1, le=10_000)
    warm_up: int = Field(0, ge=0, le=100_000)
    load_steps: int = Field(1, ge=1, le=10_000)

    @model_validator(mode="after")
    def _goes_together(self) -> Start:
        if self.state == "measured" and self.velocity == "fitted":
            raise ValueError('velocity: a measured state has measured velocities: leave "fitted" out')
        if self.velocity != "fitted" and (lost := self.changed(*OF_FITTED)):
            raise ValueError(f'{lost[0]}: belongs to fitted velocities: set velocity = "fitted", or leave it out')
        if self.state != "settled" and self.changed("load_steps"):
            raise ValueError(
                'load_steps: belongs to the search for an equilibrium: set state = "settled", or leave it out'
            )
        return self


Drives = dict[Identifier, Drive]
