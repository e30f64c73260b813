"""Scenes in files of their own, and a folder with files that scenes name."""

from collections.abc import Callable

import pytest

from tests.io.scene_texts import FILES
from torchdismech.io.scene import Scene, load_scene


@pytest.fixture
def load(tmp_path) -> Callable[..., Scene]:
    """Return a function that writes a scene (and files beside it, "name__ending" by their content) and loads it."""

    def load(text: str, overrides=None, steps=None, **files: str) -> Scene:
        for name, content in files.items():
            (tmp_path / name.replace("__", ".")).write_text(content)
        path = tmp_path / "scene.toml"
        path.write_text(text)
        return load_scene(path, overrides, steps)

    return load


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the files that the scenes name."""
    path = tmp_path_factory.mktemp("scenes")
    for name, content in FILES.items():
        (path / name).write_text(content)
    return path
