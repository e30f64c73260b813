"""Simulated robots with trained constants and learned terms: the base class of `RodSystem` and `SceneSystem`."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import models
from torchdismech import InputError, Model, RobotBuilder, State, Status, trainable, unroll
from torchdismech.elastic import Energy, Sum
from torchdismech.forces import Force
from torchdismech.integrate import SteppingMethod
from torchdismech.io.scene.refusals import SceneError
from torchdismech.io.scene.users_code import line_in, named_in_code, naming_line
from torchdismech.robot.state import Control
from torchdismech.values import Place
from training.config import Config, Term
from training.data import Window
from training.options import checked
from training.robots.constants import Named, Trained
from training.system import Prediction, System

__all__ = ["PhysicsSystem", "Schedule", "add_terms", "naming_terms"]

OF_RODS = ("stretch", "bend", "twist")  # names of their energies in `Model.energies`
STRAINS = {"bend_twist": 3, "stretch": 1}  # number of strains of a spring
Schedule = Callable[[Tensor, Model], Control]
Observer = Callable[[State, State, Control], Mapping[str, Tensor]]


class PhysicsSystem(System):
    """A simulated robot; derived classes say how a window starts, what drives it and where its markers are.

    Parameters
    ----------
    config : of the run.
    model, integrator : the robot, and the method that steps it; learned : its learned terms by name (see `add_terms`).
    dt : time between two frames [s], divided into `substeps`.
    places : constants beside those of the model, by name; modules that hold them are submodules already. Predictions
        must also work with a value for each robot, in a first dimension B, as error bars need derivatives so.
    """

    def __init__(
        self,
        config: Config,
        model: Model,
        integrator: SteppingMethod,
        dt: float,
        substeps: int,
        learned: dict[str, nn.Module],
        places: Mapping[str, Place] | None = None,
    ):
        super().__init__()
        self.dt, self.substeps = dt, substeps
        self.model, self.integrator = model, integrator
        self.n_nodes = model.body.n_nodes
        self.learned = nn.ModuleDict(learned)
        named = Named(trainable.constants(model) | dict(places or {}), model.dtype, model.device)
        counts = {t: _elements(model, t) for t in named.places if t.partition(".")[0] in {e.name for e in model.terms}}
        self.entries = {name: Trained(named, name, c, counts) for name, c in config.constants.items()}
        self.trained = nn.ModuleDict(self.entries)
        self.forces = {name for name, term in config.terms.items() if term.kind == "force"}

    # ---- what derived classes say --------------------------------------------------------------------------------

    @abstractmethod
    def start_state(self, window: Window) -> tuple[State, Tensor | None]:
        """Return the state at the last of the given frames, and the status (B,) of a search for it, None without."""

    @abstractmethod
    def schedule(self, window: Window, state: State) -> Schedule | None:
        """Return the schedule that drives the robot from the last of the given frames on; None for none."""

    def observer(self) -> Observer | None:
        """Return the function for `observe` of `torchdismech.unroll`, which keeps what `seen` needs; None for none."""
        return None

    def seen(self, nodes: Tensor, observed: Mapping[str, Tensor]) -> Tensor:
        """Return the positions (B, steps, M, 3) of the markers; by default they are the nodes (B, steps, N, 3)."""
        return nodes

    def shapes(self, nodes: Tensor) -> Tensor | None:
        """Return nodes (B, steps, N, 3) in the markers' frame; None where the markers are the nodes."""
        return None

    # ---- what they share -----------------------------------------------------------------------------------------

    def predict(self, window: Window, checkpoint_every: int | None = None) -> Prediction:
        """Return the simulated motion after the given frames of a window."""
        steps = window.frames - self.given
        state, settled = self.start_state(window)
        run = unroll(
            self.model,
            state,
            self.integrator,
            steps * self.substeps,
            self.schedule(window, state),
            self.controller(),
            checkpoint_every=checkpoint_every,
            observe=self.observer(),
        )
        nodes = run.positions[self.substeps :: self.substeps].transpose(0, 1)
        observed = {n: v[self.substeps - 1 :: self.substeps].transpose(0, 1) for n, v in run.observed.items()}
        status = run.status if settled is None else torch.where(settled == Status.CONVERGED, run.status, settled)
        positions = self.seen(nodes, observed)
        return Prediction(positions, status, run.iterations.double().mean().item(), self.shapes(nodes.detach()))

    def controller(self) -> Any:
        """Return the controller, with memory, that closes a loop around the robot; None for none."""
        return None

    def group(self, name: str) -> dict[str, nn.Parameter]:
        """Return the parameters of a group by name."""
        if name == "learned":
            return {f"{n}.{key}": p for n, term in self.learned.items() for key, p in term.named_parameters()}
        return {f"{n}.{key}": p for n, t in self.entries.items() for key, p in t.change.named_parameters()}

    def learned_modules(self) -> dict[str, nn.Module]:
        """Return the learned terms."""
        return dict(self.learned.items())

    def penalty(self) -> Tensor | None:
        """Return half the sum of squared deviations of the constants from their priors' means; None without priors."""
        parts = [entry.penalty() for entry in self.entries.values() if entry.has_prior]
        return torch.stack(parts).sum() if parts else None

    def values(self) -> dict[str, Tensor]:
        """Return the present values of the trained constants by name: the trained elements of each first tensor."""
        return {name: entry.value_of_trained for name, entry in self.entries.items()}

    def evaluations(self) -> list[list]:
        """Return the model's counts of evaluations, by which it decides when to compile."""
        return self.model.compilation.counts()

    def take_evaluations(self, counts: list[list]) -> None:
        """Restore the counts that `evaluations` returned before a checkpoint."""
        self.model.compilation.take_counts(counts)

    def learned_share(self, window: Window) -> float | None:
        """Return the rms of the learned forces over that of the elastic ones, on free nodes at a window's start.

        None without learned forces or energies, and where starts are not measured.
        """
        if not (self.forces or self._has_learned_energy()) or not self.measured:
            return None
        state, _ = self.start_state(window.to(self.device))
        elastic = self.model.mechanics.elastic_force(self.model.start_step(state), state.q).detach()
        index = self.model.unknowns.index[self.model.unknowns.index < 3 * self.model.body.n_nodes]
        size, of = (f[:, index].square().mean().sqrt() for f in (self._learned_force(state), elastic))
        return float(size / of)

    def _has_learned_energy(self) -> bool:
        return any(isinstance(t.energy, Sum) and set(t.energy.energies) & set(self.learned) for t in self.model.terms)

    def _learned_force(self, state: State) -> Tensor:
        """Return the sum (B, n) of the learned forces and of those of learned energies that are added to others."""
        total = torch.zeros_like(state.q)
        for name in self.forces:
            total = total + self.learned[name](state, Control()).detach()
        for term in self.model.terms:
            if isinstance(term.energy, Sum) and set(term.energy.energies) & set(self.learned):
                with torch.enable_grad():
                    q = state.q.detach().requires_grad_()
                    parts = term.parts(q.t(), term.constants(state, Control()))
                    energy = torch.stack([value.sum() for name, value in parts.items() if name in self.learned])
                    total = total - torch.autograd.grad(energy.sum(), q)[0]
        return total


def add_terms(builder: RobotBuilder, config: Config) -> dict[str, nn.Module]:
    """Make the learned terms of a config, add them to a builder and return them by name."""
    return {name: _add(builder, name, term, config.file) for name, term in config.terms.items()}


@contextmanager
def naming_terms(config: Config) -> Iterator[None]:
    """Name the config's term and the line of its file where a block refuses a user's network: a scene knows neither."""
    try:
        yield
    except InputError as error:
        name = _at_fault(config.terms, error)
        if name is None:
            raise
        code, first = str(config.terms[name].code), _chain(error)[-1]
        # the innermost message, before a scene added to it
        told = next(str(e) for e in reversed(_chain(error)) if isinstance(e, InputError))
        line = line_in(Path(code.rpartition(":")[0]), first)
        raise SceneError(config.file, f"terms.{name}.network", f"{code}{line}: {told}") from error


def _at_fault(terms: Mapping[str, Term], error: InputError) -> str | None:
    """Return the name of the term whose class an error's text begins with, or whose file it came through, or None."""
    chain = _chain(error)
    own = {n: t.code.rpartition(":") for n, t in terms.items() if t.code is not None and f"terms.{n}" not in str(error)}
    named = (n for n, (_, _, kind) in own.items() if any(re.match(rf"{kind}\b", str(e)) for e in chain))
    through = (n for n, (file, _, _) in own.items() if any(line_in(Path(file), e) for e in chain))
    return next(named, None) or next(through, None)


def _chain(error: BaseException) -> list[Exception]:
    """Return an error and the chain of its causes, the first cause last."""
    chain: list[Exception] = []
    at: BaseException | None = error
    while isinstance(at, Exception):
        chain.append(at)
        at = at.__cause__
    return chain


def _add(builder: RobotBuilder, name: str, term: Term, config_file: str) -> nn.Module:
    if term.replace and term.kind != "energy":
        raise InputError(f"terms.{name}.replace: only an energy can replace the linear one")
    if term.strain != "bend_twist" and term.kind == "force":
        raise InputError(f"terms.{name}.strain: a force acts on nodes, not on {term.strain}: leave it out")
    module = _made(_network(name, term, config_file), term, f"terms.{name}.options")
    if term.kind == "force":
        builder.add_force(module)
    elif term.kind == "dissipation":
        builder.add_dissipation(term.strain, module)
    elif term.replace:
        builder.replace_energy(term.strain, module)
    elif name in OF_RODS:
        raise InputError(
            f"terms.{name}: expected a name that no energy of the rods has in reports, got {name!r}: choose another one"
        )
    else:
        builder.add_energy(term.strain, module, part=name)
    return module


def _network(name: str, term: Term, config_file: str) -> Callable[..., Any]:
    """Return the class of a term's network: one of `models`, or of the user's."""
    where, known = f"terms.{name}.network", models.FORCES if term.kind == "force" else models.ENERGIES
    if term.code is None:
        if term.network not in known:
            raise InputError(
                f'{where}: expected one of {", ".join(known)}, or "file.py:Name", got {term.network!r:.80}'
            )
        return known[term.network]
    path, kind = named_in_code(Path(config_file), where, term.code, folder=Path())
    base = Force if term.kind == "force" else Energy
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise InputError(f"{where}: expected a class derived from {base.__name__} in {path}, got {kind!r:.80}")
    return kind


def _made(network: Callable[..., Any], term: Term, where: str) -> Any:
    """Return the network of a term, made with its options."""
    options = checked(network, term.options, where)
    if term.code is not None:
        return _made_by_user(network, term.code, options, where.removesuffix(".options"))
    try:
        module = network(**options)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if term.kind != "force" and module.strains > STRAINS[term.strain]:
        raise InputError(f"{where}.strains: {term.strain} has {STRAINS[term.strain]}, got {module.strains}")
    return module


def _made_by_user(network: Callable[..., Any], code: str, options: dict[str, Any], where: str) -> nn.Module:
    """Return a network of the user's, made with its options; refuse one that has nothing to learn."""
    with naming_line(Path(code.rpartition(":")[0]), f"{where}: {code}"):
        module = network(**options).double()
    if next(module.parameters(), None) is None:
        raise InputError(f"{where}: {code} has no parameters: there is nothing to learn")
    return module


def _elements(model: Model, tensor: str) -> int:
    """Return the number of elements of the elastic term that a constant belongs to."""
    owner, _, _ = tensor.partition(".")
    return model.term(owner).stencil.count
