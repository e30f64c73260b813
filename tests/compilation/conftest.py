"""Steps that are not recorded, and stand-ins for torch.compile."""

import functools

import pytest
import torch

from torchdismech.integrate.recorded import recording


@pytest.fixture(autouse=True)
def untaped(monkeypatch):
    """Let no step be recorded: those that are are not compiled."""
    monkeypatch.setattr(recording, "MAX_NUMBERS", 0)


@pytest.fixture
def compiled(monkeypatch):
    """Let torch.compile return its function; return the names of those that then run, as often as they do."""
    ran = []

    def compile(function, **options):
        @functools.wraps(function)
        def kernel(*arguments, **named):
            ran.append(function.__name__)
            return function(*arguments, **named)

        return kernel

    monkeypatch.setattr(torch, "compile", compile)
    return ran


@pytest.fixture
def traced(monkeypatch):
    """Let torch.compile trace, and run what it traced without a compiler."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
