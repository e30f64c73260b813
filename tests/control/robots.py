"""Robots and controllers for the tests of closed loops."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    InputError,
    Material,
    Model,
    RobotBuilder,
    State,
    forces,
    rollout,
    straight,
    unroll,
)
from torchdismech.control import PI, Fixed, Strains

LENGTH = 0.1  # m
DT = 0.01  # s


def rod(
    nodes: int = 11,
    youngs: float | Tensor = 1e6,
    density: float | Tensor = 1200.0,
    gravity: float | Tensor = 9.81,
    planar: bool = True,
    held: str = "ends",
    natural: str = "initial",
    points: np.ndarray | None = None,
) -> Model:
    """Return the rod of the regulation example with few nodes: simply supported, or clamped at its first two nodes.

    Numbers (B, 1) make robots of their own.
    """
    builder = RobotBuilder(planar=planar)
    points = straight((0, 0, 0), (LENGTH, 0, 0), nodes) if points is None else points
    builder.add_rod(points, Circle(1e-3), Material(youngs, density, poisson=0.5), natural=natural)
    if held == "ends":
        builder.clamp(nodes=[0], axes="xz" if planar else "xyz", twist=False)
        builder.clamp(nodes=[nodes - 1], axes="z" if planar else "yz", twist=False)
    elif held == "clamped":
        builder.clamp(nodes=[0, 1])
    down = torch.as_tensor(gravity, dtype=torch.float64)
    builder.add_force(forces.Gravity(-down * torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)))
    builder.add_force(forces.Viscous(0.1))
    return builder.finalize(compile=False)


def wave(nodes: int, height: float = 0.01) -> Tensor:
    """Return nodes (N, 3) at equal arc length along z = height sin(2 pi x / L) [m]."""
    x = np.linspace(0, LENGTH, 20001)
    z = height * np.sin(2 * np.pi * x / LENGTH)
    s = np.concatenate([[0], np.cumsum(np.hypot(np.diff(x), np.diff(z)))])
    at = np.interp(np.linspace(0, s[-1], nodes), s, x)
    return torch.tensor(np.stack([at, 0 * at, height * np.sin(2 * np.pi * at / LENGTH)], axis=1))


def folded_strip(angle: float, nodes: int = 9) -> np.ndarray:
    """Return two rows (2 N, 3) of nodes of a strip of squares, the first one flat, each next one turned on.

    Parameters
    ----------
    angle : by which a square is turned against the one before, away from the normals [rad].
    """
    turned, side = angle * np.arange(nodes - 1), LENGTH / (nodes - 1)
    line = np.zeros((nodes, 3))
    line[1:] = side * np.cumsum(np.stack([np.cos(turned), 0 * turned, np.sin(turned)], axis=1), axis=0)
    return np.concatenate([line, line + [0.0, 0.02, 0.0]])


def strip(*bending: str, natural: str = "initial", angle: float = 0.0, held_normals: bool = True) -> Model:
    """Return flat or folded strips beside each other with these kinds of bending, each on its first square."""
    nodes = 9
    squares = [[k, k + 1, k + nodes + 1] for k in range(nodes - 1)]
    squares += [[k, k + nodes + 1, k + nodes] for k in range(nodes - 1)]
    builder, held = RobotBuilder(), []
    for number, kind in enumerate(bending):
        place = folded_strip(angle, nodes) + [0.0, 0.1 * number, 0.0]
        index = builder.add_shell(place, squares, 1e-3, Material(1e8, 1100.0, 0.3), kind, natural, membrane="continuum")
        held += [index[0], index[1], index[nodes], index[nodes + 1]]
    builder.clamp(nodes=held, twist=held_normals)
    builder.add_force(forces.MassDamping(20.0))
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    return builder.finalize(compile=False)


class Integrating(nn.Module):
    """A controller that remembers: natural curvature follows the integral of how far the middle is from a height.

    Parameters
    ----------
    gain : of the integral [1/m per m s].
    """

    def __init__(self, gain: float = 50.0):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain, dtype=torch.float64))

    def initial(self, model: Model, state: State) -> Mapping[str, Tensor]:
        """Return an integral of nothing, and how often it was asked."""
        return {
            "integral": state.q.new_zeros(state.batch, 1),
            "asked": torch.zeros(state.batch, dtype=torch.int64, device=state.q.device),
        }

    def forward(
        self, state: State, memory: Mapping[str, Tensor], control: Control, model: Model
    ) -> tuple[Control, Mapping[str, Tensor]]:
        """Return the control and the memory after the step."""
        middle = state.positions[:, state.n_nodes // 2, 2:]
        integral = memory["integral"] + 0.01 * (0.002 - middle)
        natural = model.natural_strains(state.batch).natural_curvature
        assert natural is not None
        control = control.replace(
            natural_curvature=natural + self.gain * integral[..., None] * natural.new_tensor([1, 0])
        )
        return control, {"integral": integral, "asked": memory["asked"] + 1}


class Attribute(nn.Module):
    """The same controller as it must not be written: the integral is an attribute."""

    def __init__(self, gain: float = 50.0):
        super().__init__()
        self.inner = Integrating(gain)
        self.memory: Mapping[str, Tensor] | None = None

    def forward(self, state: State, control: Control, model: Model) -> Control:
        """Return the control and advance what stands in the attribute."""
        memory = self.inner.initial(model, state) if self.memory is None else self.memory
        control, after = self.inner(state, memory, control, model)
        self.memory = {name: value.detach() for name, value in after.items()}  # or torch's checkpoints notice
        return control


def shape(model, height: float = 0.01) -> Fixed:
    """Return the wave as a reference."""
    return Fixed(Strains(model).of_shape(model, wave(model.body.n_nodes, height)))


def pi(model, **options) -> PI:
    """Return a controller of the wave."""
    given = options.pop("reference", None)
    reference = shape(model) if given is None else given
    return PI(model, Strains(model), reference, options.pop("dt", DT), **options)


def refused(model, controller, integrator=None, steps=10, batch=1) -> str:
    """Return why a run is refused; both kinds of runs say the same."""
    said = set()
    for run in (rollout, unroll):
        with pytest.raises(InputError) as error:
            run(model, model.initial_state(batch), integrator or ImplicitEuler(DT), steps, controller=controller)
        said.add(str(error.value))
    (sentence,) = said
    return sentence
