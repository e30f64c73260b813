"""The wheel in an environment of its own, away from the repository."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIP = (sys.executable, "-m", "pip")
SHIPPED = ("torchdismech", "training", "models", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """Return a fresh environment with the wheel, which borrows what the library needs from the present one."""
    folder = tmp_path_factory.mktemp("wheel")
    source = copied_source(folder / "source")  # setuptools leaves files where it builds
    run = {"check": True, "capture_output": True, "cwd": folder}
    subprocess.run([*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source], **run)
    (wheel,) = folder.glob("*.whl")
    programs = borrowing_environment(folder)
    subprocess.run([*PIP, "--python", programs / "python", "install", "--no-deps", "--no-index", wheel], **run)
    shutil.rmtree(source)
    return programs


def copied_source(source: Path) -> Path:
    """Return a folder with a copy of what the wheel is made of."""
    source.mkdir()
    for name in SHIPPED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    return source


def borrowing_environment(folder: Path) -> Path:
    """Return the programs of a fresh environment that finds what the library needs in the present one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, capture_output=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    # its .pth files do not count there, so an editable install of the repository is not seen
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "venv" / "bin"


def said(environment: Path, folder: Path, *command: str | Path) -> str:
    """Return what a command of the environment prints, run in a folder away from the repository."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [environment / command[0], *command[1:]], cwd=folder, env=clean, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_all_that_is_no_python():
    """Name every other file of the packages in pyproject.toml: setuptools leaves out what is not."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    shipped = {path for package, globs in data.items() for glob in globs for path in _folder(package).glob(glob)}
    found = [path for name in ("torchdismech", "training", "models") for path in (ROOT / name).rglob("*.*")]
    others = {path for path in found if path.suffix not in (".py", ".pyc")}
    assert len(others) > 6 and not others - shipped


def _folder(package: str) -> Path:
    return ROOT / package.replace(".", "/")


@pytest.mark.slow
def test_the_demo_runs(environment, tmp_path):
    """Simulate, look at and change the demo with nothing but the wheel."""
    assert "demo.h5" in said(environment, tmp_path, "torchdismech", "demo", "--steps", "5")
    assert {"scene.toml", "rod.txt", "demo.h5"} <= {path.name for path in (tmp_path / "demo").iterdir()}
    said(environment, tmp_path, "torchdismech", "simulate", "demo/scene.toml", "--steps", "2", "--batch", "2")
    said(environment, tmp_path, "torchdismech", "plot", "scene.h5", "--out", "scene.png")
    assert (tmp_path / "scene.png").stat().st_size > 1000


@pytest.mark.slow
def test_fits_are_reached(environment, tmp_path):
    """Find training and models in the environment, and the fit by its command."""
    where = "import models, torchdismech, training; print(models.__file__, training.__file__, torchdismech.__file__)"
    files = said(environment, tmp_path, "python", "-c", where).split()
    assert all(str(environment.parent) in file for file in files)
    assert "CONFIG.toml" in said(environment, tmp_path, "torchdismech", "train", "--help")
    assert "RUN" in said(environment, tmp_path, "torchdismech", "evaluate", "--help")


@pytest.mark.slow
def test_types_and_version_are_there(environment, tmp_path):
    """Ship py.typed, and say which version runs, on what."""
    (marker,) = environment.parent.glob("lib/python*/site-packages/torchdismech/py.typed")
    assert marker.exists()
    version = said(environment, tmp_path, "torchdismech", "--version")
    assert all(word in version for word in ("torchdismech", "torch", "device", "compiler", "solvers"))


@pytest.mark.slow
def test_a_script_beside_the_clone_finds_the_package(tmp_path):
    """Import from a folder that holds the clone, which has the package's name, after an editable install."""
    source, programs = copied_source(tmp_path / "torchdismech"), borrowing_environment(tmp_path)
    editable = ["install", "--no-deps", "--no-build-isolation", "-e", source]
    subprocess.run([*PIP, "--python", programs / "python", *editable], check=True, capture_output=True, cwd=tmp_path)
    (tmp_path / "mine.py").write_text("from torchdismech import RobotBuilder\nprint(RobotBuilder.__name__)\n")
    assert said(programs, tmp_path, "python", tmp_path / "mine.py") == "RobotBuilder\n"
