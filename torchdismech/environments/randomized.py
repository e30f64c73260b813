"""Random numbers of a scene: which constants depend on them, and how to draw these anew for each episode."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from torchdismech.environments.draws import Draws
from torchdismech.errors import InputError
from torchdismech.io.scene import Scene
from torchdismech.io.scene.assemble import build_model
from torchdismech.io.schema.scene import Distribution
from torchdismech.model import Model
from torchdismech.model.constants import CONTACT_RADII
from torchdismech.values import Place, every_module, per_robot

__all__ = ["RandomizedConstants", "drawn_constants"]


def drawn_constants(scene: Scene) -> set[str]:
    """Return the names of the constants that [batch.randomize] changes from robot to robot.

    They depend on numbers drawn from a distribution, or on lists of `values` that differ from robot to robot.
    """
    first, second = _models_of_two_episodes(scene)
    places = {place for place, differs in _compared(first, second) if differs}
    values = per_robot(first)
    for (place, tensor), axis in zip(values, values.axes(), strict=True):
        if axis is not None and not torch.equal(tensor, tensor.narrow(axis, 0, 1).expand_as(tensor)):
            places.add(place)
    return {name for name, place in first.places.items() if place in places}


class RandomizedConstants:
    """The constants of a scene's robots, for `Task.constants`: [batch.randomize] draws again for each episode.

    A number of a scene, such as a radius, may determine many constants. So the scene's robots are built with the
    numbers drawn for an episode, and the constants that depend on them are read off. A robot draws again where the
    scene would refuse a number, such as a negative stiffness from a normal distribution; the calls are counted, so that
    an episode always draws the same numbers.

    Parameters
    ----------
    scene : its [batch.randomize] has to have distributions; lists of `values` stay as they are.

    Raises
    ------
    InputError
        Nothing is drawn, or a drawn number changes more than constants, such as radii of robots that touch something.
    """

    def __init__(self, scene: Scene):
        self.scene = scene
        drawn = {name: d for name, d in scene.document.batch.randomize.items() if d.values is None}
        if not drawn:
            raise InputError(f"{scene.path}: anew: [batch.randomize] has no distribution to draw from")
        first, second = _models_of_two_episodes(scene)
        names = {place: name for name, place in first.places.items()}
        self.names = []
        for (module, attribute), differs in _compared(first, second):
            if differs and (module, attribute) in names:
                self.names.append(names[module, attribute])
            elif differs and not (attribute in CONTACT_RADII and first.contact.none):
                raise InputError(
                    f"{scene.path}: anew: {', '.join(drawn)}: change {attribute} of {type(module).__name__}, which is "
                    "set when robots are built; leave out what changes it, such as radii of robots that touch something"
                )

    def __call__(self, model: Model, draws: Draws) -> dict[str, Tensor]:
        """Return the values (B, ...) of the constants by name, for the episodes of `draws`."""
        drawn = _model_of(self.scene, draws)
        return {name: getattr(*drawn.places[name]) for name in self.names}


def _models_of_two_episodes(scene: Scene) -> tuple[Model, Model]:
    """Return the scene's robots with the numbers of two episodes: tensors that differ depend on what is drawn."""
    seed, episode = torch.zeros(2, scene.batch, dtype=torch.int64, device="cpu")
    return _model_of(scene, Draws(seed, episode)), _model_of(scene, Draws(seed, episode + 1))


def _model_of(scene: Scene, draws: Draws) -> Model:
    """Return the scene's robots with numbers that `draws` gives for the episodes."""

    def sampled(name: str, distribution: Distribution) -> Iterator[np.ndarray]:
        draws_of_name = Draws(draws.seed, draws.episode).named(name)  # in float64, as numbers of scenes are
        draw = getattr(draws_of_name, distribution.kind)  # its methods are called as the keys: `uniform`, ...
        while True:
            yield draw(*getattr(distribution, distribution.kind)).cpu().numpy()

    return build_model(scene.redrawn(sampled), compile=False)


def _compared(first: Model, second: Model) -> Iterator[tuple[Place, bool]]:
    """Yield the place of each tensor of a model, and whether its value differs in another model of the same kind."""
    for module, twin in zip(every_module(first), every_module(second), strict=True):
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    yield (module, name), not torch.equal(tensor, getattr(twin, name))
