"""What a backward pass refuses: gradients of gradients, and models that have changed since the step."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch
from torch import Tensor

from torchdismech.integrate.gradients.recipe import StepRecipe
from torchdismech.snapshot import Snapshot
from torchdismech.values import Place, every_module

__all__ = ["changed_between", "refuse_changed_model", "refuse_other_gradients"]


def refuse_other_gradients(gradients: Sequence[Tensor | None]) -> None:
    """Refuse gradients of gradients, several gradients at once, and backward passes in inference mode."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a step can be differentiated once, and create_graph=True asks for derivatives of its gradients: take "
            "differences of gradients, or a loss without them"
        )
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "a step cannot be differentiated under torch.inference_mode; call backward() outside of it (it may stand "
            "under torch.no_grad)"
        )
    if any(gradient is not None and _is_batched(gradient) for gradient in gradients):
        raise RuntimeError(
            "a step takes one gradient at a time, and several were given at once (is_grads_batched=True, "
            "jacobian(vectorize=True)); leave that out, or take the step once for each as robots of a batch"
        )


def refuse_changed_model(recipe: StepRecipe) -> None:
    """Refuse a model whose constants or modules were changed or exchanged since the step."""
    _refuse_changed_constants(recipe)
    if not recipe.unchanged:
        _refuse_lost_places(recipe)


def changed_between(names: Sequence[str], how: str, taken_again: bool = False) -> RuntimeError:
    """Return the error that something was "changed in place", or "exchanged", between a step and its backward pass.

    Parameters
    ----------
    names : of what was changed.
    taken_again : whether the backward pass takes the step again.
    """
    if taken_again:
        does, instead = "takes the step again from what is there now", "take it without checkpoints"
    else:
        does, instead = "evaluates the step's equations again", "give each step its own by Control(values=...)"
    return RuntimeError(
        f"{', '.join(names)}: {how} between a step and its backward pass, which {does}; change it after the backward "
        f"pass, or {instead}"
    )


def _is_batched(tensor: Tensor) -> bool:
    """Return whether a tensor stands for several, as in `torch.func.vmap` and vectorised Jacobians."""
    of = torch._C._functorch
    return of.is_functorch_wrapped_tensor(tensor) or of.is_legacy_batchedtensor(tensor)


def _refuse_lost_places(recipe: StepRecipe) -> None:
    """Refuse a model of which a module was exchanged since the step, as its tensors cannot be found again."""
    present = {*map(id, every_module(recipe.model))}
    if not all(id(module) in present for module, _ in recipe.places.tensors):
        raise RuntimeError(
            "a module of the model was exchanged between a step and its backward pass; keep the model's modules in "
            "place until the backward pass is done"
        )


def _refuse_changed_constants(recipe: StepRecipe) -> None:
    """Refuse a model whose constants were changed or exchanged since the step, as its equations were others."""
    snapshot = recipe.snapshot
    if snapshot is None:
        return
    changed, how = snapshot.changed_since(recipe.versions), "changed in place"
    if not changed:
        recipe.unchanged, changed = _found_in_this_pass(recipe, snapshot)
        how = "exchanged"
    if changed:
        raise changed_between(changed, how, recipe.taken_again)


def _found_in_this_pass(recipe: StepRecipe, snapshot: Snapshot) -> tuple[bool, list[str]]:
    """Return whether the model is as it was in a step, and the names of what was exchanged.

    It is checked once in a backward pass, for all steps with the same snapshot.
    """
    occasion = torch._C._current_graph_task_id(), recipe.taken_again
    if snapshot.last_look[0] != occasion:
        unchanged = snapshot.is_current(recipe.model)
        # autograd has kept these as they were
        kept: Container[Place] = () if recipe.taken_again else recipe.places.tensors
        snapshot.last_look = occasion, unchanged, [] if unchanged else snapshot.exchanged(kept)
    return snapshot.last_look[1:]
