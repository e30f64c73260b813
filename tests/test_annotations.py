"""Public signatures say the types of all that they take and return, so that checkers of types see wrong calls."""

import importlib
import inspect
from collections.abc import Iterator

import pytest

MODULES = (
    "",
    ".actuation",
    ".constant_curvature",
    ".contact",
    ".control",
    ".elastic",
    ".environments",
    ".forces",
    ".magnetics",
    ".meshes",
    ".rigid",
    ".testing",
    ".trainable",
)


def functions(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield a public function, or the constructor and the public methods of a class, inherited ones too, by name."""
    if inspect.isfunction(value):
        yield name, value
    elif inspect.isclass(value):
        for owner in value.__mro__:
            if owner.__module__.startswith("torchdismech"):
                for attribute, held in vars(owner).items():
                    function = getattr(held, "__func__", getattr(held, "fget", held))
                    own = inspect.isfunction(function) and function.__module__.startswith("torchdismech")
                    if own and (attribute == "__init__" or not attribute.startswith("_")):
                        yield f"{name}.{attribute}", function


def lacking(function) -> list[str]:
    """Return the parameters of a function without a type; "return" where it does not say what it returns."""
    signature = inspect.signature(function)
    named = [p for p in signature.parameters.values() if p.name not in ("self", "cls", "_cls")]
    without = [p.name for p in named if p.annotation is p.empty]
    returns = function.__name__ == "__init__" or signature.return_annotation is not signature.empty
    return without if returns else [*without, "return"]


@pytest.mark.parametrize("module", MODULES)
def test_public_signatures_have_types(module):
    """Find a type of each parameter, and of what is returned."""
    public = importlib.import_module(f"torchdismech{'.geometry' * (module == '.meshes')}{module}")
    found = [pair for name in public.__all__ for pair in functions(name, getattr(public, name))]
    assert not {name: without for name, function in found if (without := lacking(function))}
