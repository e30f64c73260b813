"""Systems of robots that a scene describes, seen through markers and driven by recorded inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torchdismech import InputError, Model, State, Static
from torchdismech.geometry.quaternions import product
from torchdismech.io.scene import Scene, Setup, load_scene
from torchdismech.io.scene.schedule import Rotation
from torchdismech.robot.state import Control
from torchdismech.values import Place
from training.config import Config
from training.config.scene import Markers, SceneRobot, Start
from training.data import Recordings, Window
from training.data.tracks import longest_run
from training.data.windows import frames_about
from training.robots.constants import AddedMass
from training.robots.drives import DriveMap, LinearMap
from training.robots.markers import MarkerTable
from training.robots.physics import Observer, PhysicsSystem, Schedule, add_terms
from training.robots.poses import quaternion
from training.system import whole_windows

__all__ = ["SceneSystem"]


class ClampPose(nn.Module):
    """A clamp's displacement [m] and rotation vector [rad] from its pose in the scene, each (3,) or (B, 3)."""

    position: Tensor
    rotation: Tensor

    def __init__(self, like: Tensor):
        super().__init__()
        for name in ("position", "rotation"):
            self.register_buffer(name, like.new_zeros(3), persistent=False)


@dataclasses.dataclass(frozen=True)
class _Driven:
    """The schedule of windows: the controls of the scene, and those that drives map from the recorded inputs.

    Attributes
    ----------
    driven : values of each drive at the frames (see `DriveMap.values`).
    """

    system: SceneSystem
    window: Window
    driven: Mapping[str, Tensor]

    @property
    def ahead(self) -> bool:
        """Whether it may be asked before the steps are taken, see `rollout`."""
        return self.system.ahead

    def __call__(self, time: Tensor, model: Model) -> Control:
        """Return the control at the times (B,) [s]."""
        return self.system.control(self.window, self.driven, time)


class SceneSystem(PhysicsSystem):
    """A robot from a scene; see `training.config.scene` for markers, drives and starts."""

    def __init__(self, config: Config, recordings: Recordings, allow_code: bool = False):
        assert isinstance(config.robot, SceneRobot)
        scene, substeps = _scene(config.robot, recordings.dt)
        learned: dict[str, nn.Module] = {}
        setup = scene.build(allow_code=allow_code, add=lambda builder: learned.update(add_terms(builder, config)))
        model, begin = setup.model, config.start or Start()
        markers = MarkerTable(config.markers or Markers(), model)
        if len(markers) != recordings.nodes:
            raise InputError(
                f"markers: the recordings have {recordings.nodes} markers, and {len(markers)} are placed on the robot: "
                "expected as many, in the same order"
            )
        columns = recordings.columns
        drives = [DriveMap(name, drive, model, columns, config.file) for name, drive in config.drives.items()]
        _refuse_replaced(drives)
        clamps = [ClampPose(model.nodes) for _ in model.body.clamps]
        places, extra = _places(config, model, markers, drives, clamps)
        super().__init__(config, model, setup.integrator, recordings.dt, substeps, learned, places)
        self.markers, self.drives, self.clamps = markers, {drive.name: drive for drive in drives}, clamps
        self.parts = nn.ModuleDict({"drives": nn.ModuleList(drives), "clamps": nn.ModuleList(clamps), "extra": extra})
        self._fitted = {tensor for constant in config.constants.values() for tensor in constant.tensors}
        self._moved_clamps = any(name.startswith("clamp") for name in self._fitted)
        self._setup = _with_poses(setup, self._moved_clamps or any(d.drive.sets == "pose" for d in drives))
        self._grip(config.robot.gripped)
        self._longest_gap = config.data.rules.max_gap
        self.refuse(recordings)
        self._take_start(begin)
        _refuse_turning_clamps(config.markers, self._setup)
        _refuse_idle(drives, self._fitted)
        self.edges = torch.as_tensor(model.rod_edges, device="cpu")
        self.triangles = torch.as_tensor(model.triangles, device="cpu")

    def _grip(self, nodes: list[int]) -> None:
        """Find the markers of gripped nodes, which move as recorded; refuse nodes that are not clamped or not seen.

        Refuse any beside poses of clamps, too, which take precedence over them.
        """
        for node in nodes:
            if node >= len(self.model.nodes) or bool(self.model.free[3 * node : 3 * node + 3].any()):
                raise InputError(
                    f"robot.gripped: expected clamped nodes, got {node}: add it to a [[clamp]] of the scene"
                )
            if node not in self.markers.node_of:
                raise InputError(f"robot.gripped: node {node} has no marker: who moves it is not known")
        posed = self._moved_clamps or self._setup.schedule.poses
        if nodes and (posed or any(drive.drive.sets == "pose" for drive in self.drives.values())):
            raise InputError(
                "robot.gripped: poses of clamps, which a drive, a [[move]] of the scene or a trained constant sets, "
                "hold all clamped nodes, so none could move as recorded: leave robot.gripped or the poses out"
            )
        self._gripped = nodes
        self.gripped = [self.markers.node_of.index(node) for node in nodes]

    def refuse(self, recordings: Recordings) -> None:
        """Refuse recordings in which a gripped marker is unseen for too long, as the motion of its node is unknown."""
        for k, name in enumerate(recordings.names):
            valid = recordings.valid[k]
            seen = valid.any(1).nonzero().flatten().tolist()
            ended = seen[-1] + 1 if seen else len(valid)  # without the frames that pad a shorter recording
            for node, marker in zip(self._gripped, self.gripped, strict=True):
                start, length = longest_run(~valid[:ended, marker].numpy())
                if length > self._longest_gap or length == ended:
                    raise InputError(
                        f"{name}: the marker at gripped node {node} is not seen, or not believed, for {length} frames "
                        f"from frame {start}: how it moves the node is not known; expected gaps of at most "
                        f"{self._longest_gap}: leave this recording out, cut it there by data.pieces, or raise "
                        "data.rules.max_gap"
                    )

    def _take_start(self, begin: Start) -> None:
        """Set the attributes that say how windows start; refuse starts that the robot and its markers do not allow."""
        self._begin = begin
        self.measured = begin.state == "measured"
        self.given = 2 if self.measured else 1
        self.warm_up = begin.warm_up
        self._free = self.model.free[: 3 * self.model.body.n_nodes].nonzero().flatten()
        if begin.velocity == "fitted":
            self.anywhere, self.start_size = False, len(self._free)
            self.start_frames, self.start_rounds = begin.frames, begin.rounds
        if begin.state == "rest":
            self.anywhere = False
            if self._moved_clamps:
                raise InputError(
                    'start.state: poses of clamps are trained: expected "settled": the robot moves with them'
                )
        nodes, places = len(self.model.nodes), self.markers.node_of
        if self.measured and (len(places) != nodes or {*places} != {*range(nodes)}):
            raise InputError(
                'start.state: "measured" needs a marker at every node of the robot: expected "rest" or "settled" of '
                "one that is seen in part"
            )

    @property
    def starts_as_described(self) -> bool:
        """Whether recordings have to begin where the scene has the robot, as nothing trained or gripped moves it."""
        moved = self._moved_clamps or any(name.startswith("markers.") for name in self._fitted)
        return self._begin.state == "rest" and not moved and not self._gripped

    def off_at_start(self, recordings: Recordings) -> tuple[Tensor, float]:
        """Return how far markers are from their points of the robot in the first frame, and how large the robot is.

        Distances (K, M) [m] are NaN where a marker was not seen; the size [m] is the diagonal of the box around the
        nodes. Starts are zero and constants as they are: before a fit, those of the scene.
        """
        window = whole_windows(self, recordings, frames=self.given)
        zeros = window.time.new_zeros(len(recordings), self.start_size)
        state, _ = self.start_state(window.replace(start=zeros if self.start_size else None))
        control = self.control(window, self._driven(window), window.time)
        observed = self.markers.offsets(state, control) if self.markers.have_offsets else {}
        places = self.markers.places(state.positions, observed.get("offset"))
        off = (places - window.positions[:, 0]).norm(dim=-1)
        nodes = state.positions
        size = (nodes.amax(1) - nodes.amin(1)).norm(dim=-1).max()
        return torch.where(window.valid[:, 0], off, torch.nan).cpu(), float(size)

    # ---- how windows start, and what drives them ----------------------------------------------------------------

    def start_state(self, window: Window) -> tuple[State, Tensor | None]:
        """Return the state at the last of the given frames, and the status (B,) of a search for equilibrium, if any."""
        if self.measured:
            return self._measured_start(window), None
        model, batch = self.model, len(window.time)
        state, status = model.initial_state(batch).replace(time=window.time), None
        if self._begin.state == "settled":
            search = Static(self._begin.load_steps, unstable="leave")
            state, info = search.step(model, state, self.control(window, self._driven(window), window.time))
            status = info.status
            state = state.replace(time=window.time)
        if window.start is not None:
            velocity = torch.zeros_like(state.q).index_copy(
                1, self._free.to(state.q.device), self._begin.spread * window.start
            )
            state = state.replace(velocity=model.unknowns.with_held(velocity, 0.0))
        return state, status

    def _measured_start(self, window: Window) -> State:
        nodes = torch.tensor(self.markers.node_of, device=window.positions.device).argsort()
        first, second = (self.markers.in_scene(window.positions[:, k])[:, nodes] for k in (0, 1))
        angles = first.new_zeros(len(first), self.model.n_dofs - 3 * len(nodes))
        q = self.model.body.q_of(second)
        velocity = torch.cat([((second - first) / self.dt).flatten(1), angles], dim=1)
        velocity = self.model.unknowns.with_held(velocity, 0.0)
        return self.model.initial_state(q=q, velocity=velocity).replace(time=window.time + self.dt)

    def schedule(self, window: Window, state: State) -> Schedule:
        """Return the schedule of the scene and of the recorded inputs."""
        return _Driven(self, window, self._driven(window))

    @property
    def ahead(self) -> bool:
        """Whether controls may be asked before the steps are taken, as time alone decides them; see `rollout`."""
        return self._setup.schedule.ahead

    def control(self, window: Window, driven: Mapping[str, Tensor], time: Tensor) -> Control:
        """Return the control at the times (B,) [s], which are equally long after the windows' starts.

        Robots that failed are excepted: they keep their time. Inputs are linear in time between frames.

        Parameters
        ----------
        driven : values of each drive at the frames (see `DriveMap.values`).
        """
        control = self._setup.schedule(time, self.model)
        # a robot that failed keeps its time: the others are the latest
        latest = float((time - window.time).max()) if len(time) else 0.0
        before, after, share = frames_about(latest, self.dt, window.frames)
        if self._gripped:
            x = torch.lerp(window.positions[:, before], window.positions[:, after], share)[:, self.gripped]
            control = control.replace(clamped_q=self._held(control, self.markers.in_scene(x)))
        for name, values in driven.items():
            control = self.drives[name].applied(control, torch.lerp(values[:, before], values[:, after], share))
        return self._with_clamps(control, len(time))

    def _held(self, control: Control, x: Tensor) -> Tensor:
        """Return the values of clamped dofs (B, n), with gripped nodes at x (B, G, 3)."""
        q = self.model.body.rest_q.expand(len(x), -1) if control.clamped_q is None else control.clamped_q
        index = 3 * torch.tensor(self._gripped, device=q.device)[:, None] + torch.arange(3, device=q.device)
        return q.index_copy(1, index.flatten(), x.flatten(1))

    def controller(self) -> Any:
        """Return the scene's controller."""
        return self._setup.controller

    def _driven(self, window: Window) -> dict[str, Tensor]:
        """Return the values of each drive at all frames, (B, F, *shape) by name."""
        if not len(self.drives):
            return {}
        frames = self.dt * torch.arange(window.frames, dtype=window.time.dtype, device=window.time.device)
        time = window.time[:, None] + frames
        return {name: drive.values(window.inputs, time) for name, drive in self.drives.items()}

    def _with_clamps(self, control: Control, batch: int) -> Control:
        """Return the control with the trained displacements and rotations of clamps on top of their poses."""
        if not self._moved_clamps:
            return control
        pose = self.model.rest_poses.expand(batch, -1, -1) if control.pose is None else control.pose
        shift = torch.stack([clamp.position.expand(batch, 3) for clamp in self.clamps], dim=1)
        turn = quaternion(torch.stack([clamp.rotation.expand(batch, 3) for clamp in self.clamps], dim=1))
        return control.replace(pose=torch.cat([pose[..., :3] + shift, product(turn, pose[..., 3:])], dim=-1))

    # ---- what is seen of them -----------------------------------------------------------------------------------

    def group(self, name: str) -> dict[str, nn.Parameter]:
        """Return the parameters of a group by name; those of users' modules that drive the robot are "learned"."""
        found = super().group(name)
        if name == "learned":
            found |= {f"{n}.{key}": p for n, of in self._driving().items() for key, p in of.named_parameters()}
        return found

    def learned_modules(self) -> dict[str, nn.Module]:
        """Return the learned terms, and users' modules that drive the robot."""
        return super().learned_modules() | self._driving()

    def _driving(self) -> dict[str, nn.Module]:
        """Return the maps of drives that are users' modules, by name."""
        return {name: drive.map for name, drive in self.drives.items() if not isinstance(drive.map, LinearMap)}

    def observer(self) -> Observer | None:
        """Return the function that gives the markers' offsets after each step; None where none has an offset."""
        if not self.markers.have_offsets:
            return None
        return lambda before, after, control: self.markers.offsets(after, control)

    def seen(self, nodes: Tensor, observed: Mapping[str, Tensor]) -> Tensor:
        """Return the positions (B, steps, M, 3) of the markers in the recordings' frame."""
        return self.markers.places(nodes, observed.get("offset"))

    def shapes(self, nodes: Tensor) -> Tensor:
        """Return the nodes (B, steps, N, 3) in the recordings' frame."""
        return self.markers.recorded(nodes).detach()


def _scene(robot: SceneRobot, dt: float) -> tuple[Scene, int]:
    """Return the scene, its time step made an exact part of the time between frames, and the number of such steps."""
    scene = load_scene(robot.scene, robot.overrides, steps=1, insist=True)  # recordings say how long a run is
    if scene.batch > 1 or scene.randomized:
        raise InputError(f"{robot.scene}: batch: a fit is of one robot: expected size = 1 and nothing randomized")
    if scene.document.initial is not None:
        raise InputError(f"{robot.scene}: initial: the config says how robots begin (start): remove the table")
    step = float(scene.document.simulation.dt or 0)
    substeps = max(round(dt / step), 1)
    if abs(substeps * step - dt) > 1e-3 * dt:
        raise InputError(
            f"{robot.scene}: simulation.dt: frames are {dt:g} s apart, expected a whole part of that, got {step:g} s: "
            f'set robot.overrides = {{"simulation.dt" = {dt / substeps:.6g}}}'
        )
    exact = {**robot.overrides, "simulation.dt": dt / substeps}
    return load_scene(robot.scene, exact, steps=1), substeps


def _places(
    config: Config, model: Model, markers: MarkerTable, drives: list[DriveMap], clamps: list[ClampPose]
) -> tuple[dict[str, Place], nn.ModuleList]:
    """Return the constants beside the model's by name, and new modules that hold some: added masses, if trained."""
    found: dict[str, Place] = {f"markers.{name}": (markers, name) for name in ("position", "rotation")}
    for k, clamp in enumerate(clamps):
        found |= {f"clamp{k}.{name}": (clamp, name) for name in ("position", "rotation")}
    for drive in drives:
        if isinstance(drive.map, LinearMap):
            found |= {f"{drive.name}.{name}": (drive.map, name) for name in ("gain", "offset")}
    if not any("added_mass" in constant.tensors for constant in config.constants.values()):
        return found, nn.ModuleList()
    if any("mass" in constant.tensors for constant in config.constants.values()):
        raise InputError('constants: "mass" and "added_mass" are both trained: expected one of them')
    added = AddedMass(model.nodes)
    nn.utils.parametrize.register_parametrization(model.body, "mass", added, unsafe=True)
    return found | {"added_mass": (added, "mass")}, nn.ModuleList([added])


def _with_poses(setup: Setup, posed: bool) -> Setup:
    """Return the setup; if `posed`, its motions move clamps as rigid bodies, so that other poses can be added."""
    if not posed or not setup.schedule.node_motions:
        return setup
    return dataclasses.replace(setup, schedule=dataclasses.replace(setup.schedule, poses=True))


def _refuse_replaced(drives: list[DriveMap]) -> None:
    """Refuse drives of which one replaces what an earlier one sets."""
    earlier: dict[str, str] = {}
    for name, drive in ((d.name, d.drive) for d in drives):
        if drive.sets in earlier and not drive.relative:
            raise InputError(
                f"drives.{name}: relative = false would replace what drives.{earlier[drive.sets]} sets: {drive.sets}; "
                "name it before that one, or leave one out"
            )
        earlier[drive.sets] = name


def _refuse_idle(drives: list[DriveMap], fitted: set[str]) -> None:
    """Refuse drives that leave what they would set as it is, and of which neither gain nor offset is fitted."""
    for name, drive in ((d.name, d.drive) for d in drives):
        if drive.idle and not fitted & {f"{name}.gain", f"{name}.offset"}:
            raise InputError(
                f"drives.{name}: its gain is zero, and nothing trains it, so it drives nothing: give a gain, or name "
                f'"{name}.gain" in the tensors of a constant'
            )


def _refuse_turning_clamps(markers: Markers | None, setup: Setup) -> None:
    """Refuse markers with an offset at clamps whose nodes are turned one by one, as the clamp's rotation is unknown."""
    fixed = [p for p in (markers.points or [] if markers else []) if p.clamp is not None and p.offset is not None]
    turning = any(isinstance(motion, Rotation) for motion in setup.schedule.node_motions)
    if fixed and turning and not setup.schedule.poses:
        raise InputError(
            f"markers: one is fixed beside clamp {fixed[0].clamp}, whose nodes a [[move]] turns one by one: give the "
            "clamp a direction, so that it turns as a body"
        )
