"""Python files of scenes: what they may import, what stands for annotations, what their errors say."""

import dataclasses
import sys
import typing

import pytest

from tests.io.scene_texts import scene_text
from torchdismech.errors import InputError
from torchdismech.io.scene import load_scene
from torchdismech.io.scene.users_code import named_in_code

ACT = "def act(time, model, control):\n    return control\n"


@pytest.fixture(autouse=True)
def _as_before(monkeypatch, tmp_path):
    """Take back what files of scenes do to Python's modules and to where it looks for them."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "secrets", raising=False)  # of the standard library, if something imported it
    yield
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def made(folder, **files: str):
    """Return the path of a scene whose folder has these files; act.py is the one that it names."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.py").write_text(content)
    path = folder / "scene.toml"
    path.write_text(scene_text(actuation='python = "act.py:act"'))
    return path


def function_of(scene):
    """Return the function that the scene names."""
    return named_in_code(scene, "actuation.python", "act.py:act")[1]


def test_a_file_imports_what_lies_beside_it(tmp_path):
    """Import a module of the same folder at the top and in a function, also where Python has others of that name."""
    act = "from secrets import GAIN\ndef act():\n    import kept\n    return GAIN, kept.HELD\n"
    scene = made(tmp_path, act=act, secrets="GAIN = 3\n", kept="HELD = 4\n")
    assert function_of(scene)() == (3, 4)
    assert sys.path[0] != str(tmp_path), "what others import must not come from the scene's folder first"


def test_files_of_two_folders_import_each_its_own(tmp_path):
    """Give each of two scenes in one process the module beside it, whichever comes first."""
    act = "from gains import GAIN\ndef act():\n    return GAIN\n"
    first = made(tmp_path / "a", act=act, gains="GAIN = 1\n")
    (tmp_path / "b" / "gains").mkdir(parents=True)
    (tmp_path / "b" / "gains" / "__init__.py").write_text("from gains.inner import GAIN\n")
    (tmp_path / "b" / "gains" / "inner.py").write_text("GAIN = 2\n")
    second = made(tmp_path / "b", act=act)
    assert [function_of(scene)() for scene in (first, second, first, second)] == [1, 2, 1, 2]


def test_modules_that_were_there_before_stay(tmp_path):
    """Keep what a script imported from a folder when a scene of another folder has a module of that name, too."""
    sys.path.insert(0, str(tmp_path / "a"))
    first = made(tmp_path / "a", act=ACT, of_the_script="GAIN = 1\n")
    import of_the_script

    second = made(tmp_path / "b", act=ACT, of_the_script="GAIN = 2\n")
    function_of(first)
    function_of(second)
    assert sys.modules["of_the_script"] is of_the_script and of_the_script.GAIN == 1


def test_a_dataclass_with_postponed_annotations_runs(tmp_path):
    """Run a file whose dataclass has annotations as text, and find their types afterwards, too."""
    act = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import ClassVar\n"
        "class Gain: pass\n"
        "@dataclass\nclass Law:\n    gain: Gain\n    count: ClassVar[int] = 1\n"
        "def act():\n    return Law\n"
    )
    other = made(tmp_path / "b", act=act.replace("Gain", "Other"))
    law = function_of(made(tmp_path / "a", act=act))()
    function_of(other)  # a file of the same name
    assert [field.name for field in dataclasses.fields(law)] == ["gain"]
    assert typing.get_type_hints(law)["gain"].__name__ == "Gain"


@pytest.mark.parametrize(
    ("act", "gains", "problem"),
    [
        ("\n1 / 0\n", "", "does not run: ZeroDivisionError in line 2: division by zero$"),
        ("import gains_\n", "", "does not run: ModuleNotFoundError in line 1: No module named 'gains_'$"),
        ("\nx = (\n", "", r"does not run: SyntaxError in line 2: '\(' was never closed$"),
        ("\nimport gains\n", "\n\n1 / 0\n", "does not run: ZeroDivisionError in line 2, from line 3 of gains.py: div"),
        ("\nimport gains\n", "\n\nx = (\n", r"does not run: SyntaxError in line 2, from line 3 of gains.py: '\(' was"),
        ("import sys\nsys.exit('enough')\n", "", "does not run: SystemExit in line 2: enough$"),
    ],
)
def test_errors_of_a_file_name_file_and_line(tmp_path, act, gains, problem):
    """Say in which line of the file, and of one beside it that it imports, something went wrong."""
    scene, before = load_scene(made(tmp_path, act=act, gains=gains)), {*sys.modules}
    with pytest.raises(InputError, match=rf"actuation.python: {tmp_path}/act.py {problem}"):
        scene.build(allow_code=True)
    assert not any(name.startswith("torchdismech_scene_act") for name in sys.modules.keys() - before)


def test_errors_of_a_function_name_the_module_that_raised(tmp_path):
    """Say which line of the file called what raised in a module beside it."""
    act = "import gains\ndef act(time, model, control):\n    return gains.wrong()\n"
    scene = load_scene(made(tmp_path, act=act, gains="def wrong():\n    return 1 / 0\n"))
    with pytest.raises(InputError, match=r"act.py raised ZeroDivisionError in line 3, from line 2 of gains.py: div"):
        scene.build(allow_code=True)
