"""What is fitted: a simulated rod with trained constants and learned terms, or a network alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import models
from torchdismech import InputError, Status, trainable, unroll
from torchdismech.elastic import Sum
from torchdismech.state import Control
from training.config import Config, Constant, Term
from training.data import Recordings
from training.options import checked
from training.robot import (
    Turns,
    builder_of,
    gripped_nodes,
    held_edges,
    held_motion,
    integrator_of,
    rest_lengths,
    start,
    turns,
)

__all__ = ["FreeSystem", "Prediction", "RodSystem", "System", "build", "refuse_unlike", "undetermined"]

GROUPS = ("constants", "learned")
STRAINS = {"bend_twist": 3, "stretch": 1}  # how many each spring has


@dataclass(frozen=True)
class Prediction:
    """Frames that follow the first two of a window.

    Attributes
    ----------
    positions : (B, steps, N, 3) [m].
    status : (B,) values of `Status`: CONVERGED, or how the first step that failed did.
    iterations : Newton iterations a step, mean over the batch; zero where there is no Newton's method.
    """

    positions: Tensor
    status: Tensor
    iterations: float

    @property
    def good(self) -> Tensor:
        """Whether all steps of each window converged, (B,) bool."""
        return self.status == Status.CONVERGED


class System(nn.Module, ABC):
    """What makes predictions and has parameters in the groups "constants" and "learned"."""

    dt: float
    gripped: list[int]
    substeps: int = 1

    @property
    def device(self) -> torch.device:
        """Where windows have to be for `predict`."""
        return next(chain(self.parameters(), self.buffers())).device

    @abstractmethod
    def predict(self, window: Tensor, turned: Turns, checkpoint_every: int | None = None) -> Prediction:
        """Return what follows the first two frames of a window (B, frames, N, 3) [m]: as many frames as it has more.

        Of the later frames only the gripped nodes are read. `turned` are the turns (B, ...) at the first frame.
        """

    def turns(self, recordings: Recordings) -> Turns:
        """Return how the robot is turned about itself at all frames (K, T, ...) of recordings."""
        return turns(recordings.positions, [])

    @abstractmethod
    def group(self, name: str) -> dict[str, nn.Parameter]:
        """Return the parameters of a group by name."""

    def parameters_by_name(self) -> dict[str, nn.Parameter]:
        """Return the parameters of all groups, as checkpoints name them."""
        return {f"{group}.{name}": p for group in GROUPS for name, p in self.group(group).items()}

    @torch.no_grad()
    def take(self, tensors: dict[str, Tensor], folder: Path) -> None:
        """Set the parameters from those of a checkpoint in a folder."""
        parameters = self.parameters_by_name()
        missing = [name for name in parameters if name not in tensors]
        if missing:
            raise InputError(f"{folder}: its checkpoint has no {missing[0]!r}: it belongs to another config")
        unknown = [name for name in tensors if name not in parameters and not name.startswith("optimizer/")]
        if unknown:
            raise InputError(f"{folder}: its checkpoint has {unknown[0]!r:.80}, too: it belongs to another config")
        for name, parameter in parameters.items():
            refuse_unlike(tensors[name], parameter, f"{folder}: {name} in its checkpoint")
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])

    def constants(self) -> dict[str, Tensor]:
        """Return the present values of the trained constants."""
        return {}

    def learned_share(self, window: Tensor, turned: Turns) -> float | None:
        """Return the size of the learned forces over that of the elastic ones at a window's frames; None without."""
        return None

    def evaluations(self) -> list[list]:
        """Return what was evaluated, which decides when to compile (see `torchdismech.compilation`)."""
        return []

    def take_evaluations(self, counts: list[list]) -> None:
        """Go on from what `evaluations` returned."""

    def train_only(self, groups) -> None:
        """Let the parameters of these groups be trained and no others."""
        for name in GROUPS:
            for parameter in self.group(name).values():
                parameter.requires_grad_(name in groups)


class RodSystem(System):
    """A rod between the gripped nodes; see `training.config` for what can be trained."""

    def __init__(self, config: Config, recordings: Recordings):
        super().__init__()
        self.dt = recordings.dt
        self.gripped = gripped_nodes(config.robot, recordings.nodes)
        self.substeps = config.simulation.substeps
        builder = builder_of(config.robot, rest_lengths(recordings))
        learned = {name: _add(builder, name, term) for name, term in config.terms.items()}
        self.model = builder.finalize(compile=config.simulation.compile)
        self.learned = nn.ModuleDict(learned)
        self.trained = nn.ModuleDict({name: _train(self.model, name, c) for name, c in config.constants.items()})
        self._tensors = {name: c.tensors[0] for name, c in config.constants.items()}
        self.integrator = integrator_of(config.simulation, self.dt / self.substeps)
        self.forces = {name for name, term in config.terms.items() if term.kind == "force"}

    def group(self, name: str) -> dict[str, nn.Parameter]:
        """Return the parameters of a group by name."""
        modules = self.trained if name == "constants" else self.learned
        return dict(modules.named_parameters())

    def evaluations(self) -> list[list]:
        """Return what the model has evaluated."""
        return self.model.compilation.counts()

    def take_evaluations(self, counts: list[list]) -> None:
        """Go on from what `evaluations` returned."""
        self.model.compilation.take_counts(counts)

    def turns(self, recordings: Recordings) -> Turns:
        """Return how the rod is turned about itself at all frames (K, T, ...) of recordings."""
        return turns(recordings.positions, held_edges(self.model))

    def predict(self, window: Tensor, turned: Turns, checkpoint_every: int | None = None) -> Prediction:
        """Return what follows the first two frames of a window (B, frames, N, 3)."""
        steps = window.shape[1] - 2
        state = start(self.model, window[:, 0], window[:, 1], self.dt, turned)
        motion = held_motion(window[:, 1:], state.twist, self.dt)
        run = unroll(
            self.model, state, self.integrator, steps * self.substeps, motion, checkpoint_every=checkpoint_every
        )
        positions = run.positions[self.substeps :: self.substeps].transpose(0, 1)
        return Prediction(positions, run.status, run.iterations.double().mean().item())

    def constants(self) -> dict[str, Tensor]:
        """Return the present values of the trained constants, of the first tensor of each."""
        known = trainable.constants(self.model)
        values = {}
        for name, tensor in self._tensors.items():
            module, attribute = known[tensor]
            values[name] = getattr(module, attribute).detach()
        return values

    def learned_share(self, window: Tensor, turned: Turns) -> float | None:
        """Return the root mean square of the learned over that of the elastic forces on free nodes; None without."""
        if not self.learned:
            return None
        window, turned = window.to(self.device), turned.to(self.device)
        state = start(self.model, window[:, 0], window[:, 1], self.dt, turned)
        elastic = self.model.mechanics.elastic_force(self.model.start_step(state), state.q).detach()
        index = self.model.free_index[self.model.free_index < 3 * self.model.body.n_nodes]
        size, of = (f[:, index].square().mean().sqrt() for f in (self._learned_force(state), elastic))
        return float(size / of)

    def _learned_force(self, state) -> Tensor:
        """Return the sum of the learned forces and of the forces of learned energies (B, n)."""
        total = torch.zeros_like(state.q)
        for name in self.forces:
            total = total + self.learned[name](state, Control()).detach()
        for term in self.model.terms:
            if isinstance(term.energy, Sum) and set(term.energy.energies) & set(self.learned):
                with torch.enable_grad():
                    q = state.q.detach().requires_grad_()
                    parts = term.energies(q.t(), term.constants(state, Control()))
                    energy = torch.stack([value.sum() for name, value in parts.items() if name in self.learned])
                    total = total - torch.autograd.grad(energy.sum(), q)[0]
        return total


class FreeSystem(System):
    """Nodes moved by a network alone, without a rod: what learning does without physics."""

    held: Tensor

    def __init__(self, config: Config, recordings: Recordings):
        super().__init__()
        self.dt = recordings.dt
        self.gripped = gripped_nodes(config.robot, recordings.nodes)
        held = torch.zeros(recordings.nodes, dtype=torch.bool)
        held[self.gripped] = True
        self.register_buffer("held", held)
        lengths = rest_lengths(recordings)
        own = checked(models.FreeNodes, config.baseline, "baseline", ("rest_length",))
        self.network = models.FreeNodes(lengths, **own)

    def group(self, name: str) -> dict[str, nn.Parameter]:
        """Return the parameters: all are learned."""
        return dict(self.network.named_parameters()) if name == "learned" else {}

    def predict(self, window: Tensor, turned: Turns, checkpoint_every: int | None = None) -> Prediction:
        """Return what follows the first two frames of a window (B, frames, N, 3)."""
        if checkpoint_every is not None:
            raise InputError("checkpoint_every: the network without physics keeps all steps; leave it out")
        x, u = window[:, 1], (window[:, 1] - window[:, 0]) / self.dt
        frames = []
        for k in range(2, window.shape[1]):
            x, u = self.network.step(x, u, window[:, k], self.held, self.dt)
            frames.append(x)
        positions = torch.stack(frames, dim=1)
        finite = positions.detach().flatten(1).isfinite().all(1)
        return Prediction(positions, torch.where(finite, int(Status.CONVERGED), int(Status.NOT_FINITE)), 0.0)


def refuse_unlike(tensor: Tensor, parameter: Tensor, what: str) -> None:
    """Refuse what cannot be put in a parameter's place: another shape or dtype, numbers that are not finite."""
    if tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
        raise InputError(
            f"{what}: expected {parameter.dtype} {tuple(parameter.shape)}, got {tensor.dtype} {tuple(tensor.shape)}: "
            "it belongs to another config"
        )
    if not bool(tensor.isfinite().all()):
        raise InputError(f"{what}: expected finite numbers: go on from another checkpoint")


def build(config: Config, recordings: Recordings, device: torch.device | str = "cpu") -> System:
    """Return the system of a config; what the recordings say about the robot (rest lengths) comes from `recordings`."""
    kind = RodSystem if config.physics else FreeSystem
    return kind(config, recordings).double().to(device)


def undetermined(config: Config) -> str | None:
    """Return a warning where positions alone cannot tell the trained constants, else None.

    Stiffness, damping, drag and mass multiplied by one number move alike, so one of them has to be known.
    """
    factors = {t for c in config.constants.values() if c.kind == "factor" for t in c.tensors}
    mass, stiff = "mass" in factors, any(t.startswith("bend_twist.EI") for t in factors)
    if mass and stiff:
        return (
            "mass and bending stiffness are both trained: positions only tell their ratio (stiffness, damping, drag "
            "and mass multiplied by one number move alike). Leave out one of them, or read the constants as ratios."
        )
    return None


def _add(builder, name: str, term: Term) -> nn.Module:
    """Make a learned term, add it to the builder and return it."""
    known = models.FORCES if term.kind == "force" else models.ENERGIES
    if term.network not in known:
        raise InputError(f"terms.{name}.network: expected one of {', '.join(known)}, got {term.network!r:.80}")
    if term.replace and term.kind != "energy":
        raise InputError(f"terms.{name}.replace: only an energy can replace the linear one")
    if term.strain != "bend_twist" and term.kind == "force":
        raise InputError(f"terms.{name}.strain: a force acts on nodes, not on {term.strain}: leave it out")
    module = _made(known[term.network], term, f"terms.{name}.options")
    if term.kind == "force":
        builder.add_force(module)
    elif term.kind == "dissipation":
        builder.add_dissipation(term.strain, module)
    elif term.replace:
        builder.replace_energy(term.strain, module)
    else:
        builder.add_energy(term.strain, module, part=name)
    return module


def _made(network: Callable[..., Any], term: Term, where: str) -> Any:
    """Return the network of a term with its options."""
    options = checked(network, term.options, where)
    try:
        module = network(**options)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if term.kind != "force" and module.strains > STRAINS[term.strain]:
        raise InputError(f"{where}.strains: {term.strain} has {STRAINS[term.strain]}, got {module.strains}")
    return module


def _train(model, name: str, constant: Constant) -> nn.Module:
    shape: tuple[int, ...] = ()
    if constant.per == "element":
        known = trainable.constants(model)
        unknown = [t for t in constant.tensors if t not in known]
        if unknown:
            raise InputError(
                f"constants.{name}: no {unknown[0]!r} in this model; there are: {', '.join(sorted(known))}"
            )
        shape = (_elements(model, constant.tensors[0]),)
    if constant.kind == "factor":
        return trainable.scaled(model, constant.tensors, shape)
    assert constant.unit is not None
    return trainable.shifted(model, constant.tensors, constant.unit, shape)


def _elements(model, tensor: str) -> int:
    """Return how many elements a constant of that name is given for."""
    owner, _, _ = tensor.partition(".")
    for term in model.terms:
        if term.name == owner:
            return term.stencil.count
    module, attribute = trainable.constants(model)[tensor]
    value = getattr(module, attribute)
    if not value.ndim:
        raise InputError(f'{tensor} is one number for all elements: expected per = "all"')
    return int(value.shape[-1])
