"""One figure of a trajectory: shapes of a robot at several times, and how a node moves."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchdismech.errors import InputError, Status, path_of, whole_number
from torchdismech.geometry.surface import find_surface
from torchdismech.io.outputs import PICTURES, replacing
from torchdismech.trajectory import Trajectory
from torchdismech.trajectory.frames import refuse_no_run
from torchdismech.view.arrows import COLOUR, LEAST_FORCE, LONGEST_ARROW, ContactForces
from torchdismech.view.obstacles import View, draw_obstacle

if TYPE_CHECKING:
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

__all__ = ["draw_trajectory", "index_of", "pictured", "require_matplotlib", "save_picture", "title_of", "write_figure"]

AXES = "xyz"
# Shapes that are drawn if nobody says how many: surfaces hide each other sooner than lines do.
SNAPSHOTS, SNAPSHOTS_OF_SHELLS = 9, 4
# A direction in which the robot extends by less than this part of its size is left out of the picture.
FLAT = 1e-6
COMPONENT_COLOURS = ("#4477aa", "#228833", "#cc3311")


def save_picture(
    trajectory: Trajectory, path: str | Path, robot: int = 0, node: int = -1, snapshots: int | None = None
) -> None:
    """Draw a trajectory to a file, whose ending (.png, .pdf, .svg) says the format; arguments as `draw_trajectory`."""
    write_figure(path, lambda: draw_trajectory(trajectory, robot, node, snapshots))


def pictured(
    trajectory: Trajectory, path: str | Path, robot: int = 0, node: int = -1, snapshots: int | None = None
) -> None:
    """Draw as `save_picture` does where matplotlib is installed, and print which file was written, or why none was."""
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no {path}: pictures need matplotlib, pip install 'torchdismech[view]'")
        return
    save_picture(trajectory, path, robot, node, snapshots)
    print(f"wrote {path}")


def write_figure(path: str | Path, drawn: Callable[[], Figure]) -> None:
    """Write what `drawn` returns to a file, whose ending says the format."""
    path = path_of(path, "picture")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}")
    if path.suffix.lower() not in PICTURES:
        raise InputError(f"{path}: expected a name that ends in .png, .pdf or .svg")
    figure = drawn()
    with replacing(path) as part:
        figure.savefig(part, dpi=150)


def draw_trajectory(trajectory: Trajectory, robot: int = 0, node: int = -1, snapshots: int | None = None) -> Figure:
    """Return a figure of one robot's shapes over time and of one node's displacement.

    Rods are lines; shells are shaded, translucent surfaces, always in space. Obstacles that the run keeps are drawn,
    too, those that move with each shape; a flat picture shows their section with the robot's plane. Forces of contacts
    are arrows (see `view.arrows`).

    Parameters
    ----------
    robot : which robot of the batch.
    node : whose path is drawn; -1 is the last.
    snapshots : number of shapes, evenly in time, the last one among them; by default 9, or 4 of a robot with shells.

    Raises
    ------
    InputError
        There is no such robot or node; matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    refuse_no_run("draw_trajectory: trajectory", trajectory)
    batch, nodes = trajectory.positions.shape[1:3]
    robot, node = index_of(robot, batch, "robot"), index_of(node, nodes, "node")
    if snapshots is not None:
        snapshots = whole_number(snapshots, "snapshots")
    figure = Figure(figsize=(12, 5.2), layout="constrained")
    paths = trajectory.positions.detach().cpu().numpy()  # (T, B, N, 3)
    shapes = paths[:, robot]
    drawn = np.concatenate([shapes.reshape(-1, 3), paths[-1].reshape(-1, 3)])
    factor, unit = _length_unit(np.ptp(drawn, axis=0).max())
    shells = len(trajectory.triangles) > 0
    axes = [0, 1, 2] if shells else _drawn_axes(drawn)
    projection: Any = {"projection": "3d"} if len(axes) == 3 else {}
    left = figure.add_subplot(1, 2, 1, **projection)
    if batch > 1:
        outlines = np.concatenate([trajectory.rod_edges, _border_edges(trajectory.triangles)])
        ends = np.concatenate([_lines(shape, outlines) for shape in paths[-1] * factor])
        label = f"all {batch} robots at the end"
        left.plot(*(ends[:, k] for k in axes), color="0.5", lw=0.6, alpha=0.35, zorder=0, label=label)
    count = (SNAPSHOTS_OF_SHELLS if shells else SNAPSHOTS) if snapshots is None else snapshots
    colour_of_time, shown = _draw_shapes(left, trajectory, shapes * factor, node, axes, count)
    view = View(left, tuple(axes), factor, shapes[0, 0])
    for obstacle in trajectory.appearance().things:
        # what moves has the colour of the time, as the robot has
        for frame in shown if obstacle.path is not None else shown[:1]:
            time = trajectory.time[frame].item()
            colour = "0.5" if obstacle.path is None else colour_of_time.to_rgba(np.asarray(time))
            draw_obstacle(view, obstacle, robot, batch, time, colour)
    if "node_force" in trajectory.contact:
        _draw_forces(view, ContactForces(trajectory), shown, robot)
    _label(figure, left, trajectory, colour_of_time, axes, unit)
    left.set_title(title_of(robot, trajectory))
    _draw_displacement(figure.add_subplot(1, 2, 2), trajectory, paths[:, :, node], robot, node)
    return figure


def require_matplotlib() -> None:
    """Refuse to draw where there is no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError("pictures need matplotlib: pip install 'torchdismech[view]'") from error


def index_of(index: object, count: int, what: str) -> int:
    """Return an index counted from 0; a negative one counts from the end; refuse one out of range."""
    if isinstance(index, bool) or not isinstance(index, Integral) or int(index) not in range(-count, count):
        raise InputError(f"{what}: expected a number 0 to {count - 1} (or -1 for the last), got {index}")
    return int(index) % count


def title_of(robot: int, trajectory: Trajectory) -> str:
    """Return a title that says which robot of a batch a figure shows, and when it failed: it stands still since."""
    which = f"robot {robot} of 0 to {trajectory.batch - 1}" if trajectory.batch > 1 else "robot 0"
    failed = np.flatnonzero(trajectory.status[:, robot].cpu().numpy())
    if not len(failed):
        return which
    time, last_good = trajectory.time, max(failed[0] - 1, 0)
    when = f"{time[last_good].item():g} s" if time[-1] > time[0] else f"step {trajectory.step[last_good].item()}"
    return f"{which}, failed after {when}: {Status(int(trajectory.status[failed[0], robot])).name.lower()}"


def _length_unit(size: float) -> tuple[float, str]:
    """Return the factor from metres to the unit that suits a size, and its name."""
    for limit, factor, unit in ((0.5, 1.0, "m"), (5e-4, 1e3, "mm"), (0.0, 1e6, "µm")):
        if size >= limit:
            return factor, unit
    return 1.0, "m"


def _drawn_axes(points: np.ndarray) -> list[int]:
    """Return the axes in which points (.., 3) are drawn: two if they lie in a coordinate plane, else all three."""
    extent = np.ptp(points, axis=0)
    moving = [k for k in range(3) if extent[k] > FLAT * extent.max()]
    if len(moving) == 3:
        return moving
    # a straight robot gets z, else y, as its second axis
    missing = [k for k in (2, 1, 0) if k not in moving]
    return sorted((moving + missing)[:2])


def _lines(shape: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return points (3 E, 3) whose polyline draws the edges: a row of NaN after each edge interrupts the line."""
    ends = shape[edges]
    return np.concatenate([ends, np.full_like(ends[:, :1], np.nan)], axis=1).reshape(-1, 3)


def _border_edges(triangles: np.ndarray) -> np.ndarray:
    """Return the edges (k, 2) that only one of the triangles (F, 3) has."""
    surface = find_surface(triangles)
    return np.delete(surface.edges, surface.hinge_edges, axis=0)


def _draw_shapes(
    plot: Any, trajectory: Trajectory, shapes: np.ndarray, node: int, axes: list[int], snapshots: int
) -> tuple[ScalarMappable, np.ndarray]:
    """Draw the shapes at several times; return the colour map of times, and the rows of the frames drawn.

    `shapes` (T, N, 3) are in the unit of the picture.
    """
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    times = trajectory.time.cpu().numpy()
    shown = np.unique(np.linspace(0, len(times) - 1, max(snapshots, 2)).round().astype(int))[-snapshots:]
    colour_of_time = ScalarMappable(Normalize(times[0], times[-1]), matplotlib.colormaps["viridis"])
    plot.plot(*(shapes[:, node, k] for k in axes), color="#bb5566", lw=1, ls="--", label=f"path of node {node}")
    for frame in shown:
        colour = colour_of_time.to_rgba(times[frame])
        if len(trajectory.triangles):
            _draw_surface(plot, shapes[frame], trajectory.triangles, colour)
        if len(trajectory.rod_edges):
            lines = _lines(shapes[frame], trajectory.rod_edges)
            plot.plot(*(lines[:, k] for k in axes), color=colour, lw=1.8, solid_capstyle="round")
        plot.plot(*([shapes[frame, node, k]] for k in axes), "o", color=colour, ms=4)
    return colour_of_time, shown


def _draw_forces(view: View, forces: ContactForces, rows: np.ndarray, robot: int) -> None:
    """Draw the contact forces on a robot in some frames as arrows, scaled to the picture by the run's largest force."""
    limits = [getattr(view.plot, f"get_{'xyz'[k]}lim")() for k in range(len(view.axes))]
    scale = LONGEST_ARROW * np.ptp(limits, axis=1).max() / forces.largest if forces.largest else 0.0
    where = (rows, np.array([robot]), forces.nodes(rows, np.array([robot])))
    vectors = scale * forces.forces(*where)[:, 0][..., view.axes]  # (T, K, axes)
    places = view.factor * forces.places(*where)[:, 0][..., view.axes]
    shown = np.linalg.norm(vectors, axis=-1) > LEAST_FORCE * LONGEST_ARROW * np.ptp(limits, axis=1).max()
    if not shown.any():
        return
    how: Any = {"color": [c / 255 for c in COLOUR], "label": f"contact forces, up to {forces.largest:.3g} N"}
    if len(view.axes) == 2:
        how |= {"angles": "xy", "scale_units": "xy", "scale": 1.0, "width": 4e-3, "zorder": 3}
    else:
        how |= {"arrow_length_ratio": 0.25, "lw": 1.4}
    view.plot.quiver(*places[shown].T, *vectors[shown].T, **how)
    ends = (places + vectors)[shown]
    if len(view.axes) == 2:
        view.plot.update_datalim(ends)
    else:
        view.plot.auto_scale_xyz(*ends.T, had_data=True)


def _label(
    figure: Figure, plot: Any, trajectory: Trajectory, colour_of_time: ScalarMappable, axes: list[int], unit: str
) -> None:
    """Give the picture of the shapes equal scales, labels of its axes, a legend and a colour bar of times."""
    times = trajectory.time
    names = [f"{AXES[k]} [{unit}]" for k in axes]
    plot.set_xlabel(names[0], labelpad=8)
    plot.set_ylabel(names[1])
    if len(axes) == 3:
        plot.set_zlabel(names[2])
        plot.set_aspect("equal")
        if len(trajectory.triangles):
            # a little smaller, as the labels of a tall box need room: robots may fall or rise far
            plot.set_box_aspect([np.ptp(getattr(plot, f"get_{axis}lim")()) for axis in AXES], zoom=0.85)
        plot.view_init(elev=22, azim=-60)
        _thin_out_ticks(plot)
    else:
        plot.set_aspect("equal", adjustable="datalim")
        plot.grid(alpha=0.25)
    plot.legend(loc="best" if len(axes) == 2 else "upper left", frameon=False, fontsize=9)
    if times[-1] > times[0]:
        figure.colorbar(colour_of_time, ax=plot, label="time [s]", shrink=0.75, pad=0.08 if len(axes) == 3 else 0.02)


def _draw_surface(plot: Any, shape: np.ndarray, triangles: np.ndarray, colour: Any) -> None:
    """Draw triangles (F, 3) of the nodes (N, 3), each shaded by its angle to the light."""
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection

    surface = Poly3DCollection(
        shape[triangles], facecolors=[colour], edgecolors=[colour], lw=0.3, shade=True, alpha=0.6
    )
    plot.add_collection3d(surface)
    plot.auto_scale_xyz(*shape.T, had_data=True)  # a collection does not widen the axes by itself in all versions


def _thin_out_ticks(plot: Any) -> None:
    """Give each axis of a picture in space as many ticks as its length has room for."""
    from matplotlib.ticker import MaxNLocator

    spans = {axis: np.ptp(getattr(plot, f"get_{axis}lim")()) for axis in AXES}
    for axis, span in spans.items():
        count = max(2, round(5 * span / max(spans.values())))
        getattr(plot, f"{axis}axis").set_major_locator(MaxNLocator(count))


def _draw_displacement(plot: Any, trajectory: Trajectory, paths: np.ndarray, robot: int, node: int) -> None:
    """Draw the displacement of a node over time: components for one robot, their range for all."""
    times = trajectory.time.cpu().numpy()
    advances = times[-1] > times[0]
    abscissa = times if advances else trajectory.step.cpu().numpy()  # a static run has no time
    displacement = paths - paths[0]  # (T, B, 3)
    factor, unit = _length_unit(np.abs(displacement).max())
    for k, colour in enumerate(COMPONENT_COLOURS):
        component = displacement[:, :, k] * factor
        if component.shape[1] > 1:
            low, high = component.min(axis=1), component.max(axis=1)
            label = f"all {component.shape[1]} robots" if k == 0 else None
            plot.fill_between(abscissa, low, high, color=colour, alpha=0.15, lw=0, label=label)
        plot.plot(abscissa, component[:, robot], color=colour, lw=1.8, label=AXES[k])
    plot.axhline(0, color="0.7", lw=0.8, zorder=0)
    if len(abscissa) > 1:
        plot.set_xlim(abscissa[0], abscissa[-1])
    plot.set_xlabel("time [s]" if advances else "step")
    plot.set_ylabel(f"displacement [{unit}]")
    plot.set_title(f"node {node}, robot {robot}")
    plot.grid(alpha=0.25)
    plot.legend(frameon=False, fontsize=9)
