"""Count the functions that a reader of one eager step goes through: ``python -m benchmarks.calls``.

Counted are the library's own Python functions in a step of a clamped rod, four robots, three Newton iterations: calls,
functions, files, hops from one file to another, and how deep calls are nested. The last column is the core of a step
(`integrate.step.solved_step`), without the policies around it. A recorded step replays what it did before.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torchdismech
from torchdismech import Circle, ImplicitEuler, Material, Model, RobotBuilder, State, StepInfo, forces, straight
from torchdismech.integrate import forward

LIBRARY = str(Path(torchdismech.__file__).parent)
ROBOTS, BEFORE = 4, 3  # robots, and steps before the one that is counted: the first ones also do the set-up
UNTIL_RECORDED = 26  # steps, after which a step is recorded


class Trace:
    """Counts the library's functions that are called while it is switched on, in `with trace:`.

    Attributes
    ----------
    calls, hops : numbers of calls, and of hops between files on the way down and back; depth : deepest nesting.
    functions, files : the functions that were called, by file and line, and their files.
    """

    def __init__(self) -> None:
        self.calls = self.hops = self.depth = 0
        self.functions: set[tuple[str, int]] = set()
        self.files: set[str] = set()
        self._stack: list[str] = []

    def __enter__(self) -> "Trace":
        self._before = sys.getprofile()
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if not file.startswith(LIBRARY) or event not in ("call", "return"):
            return
        above = self._stack[-1] if self._stack else file
        if event == "return":
            if self._stack:
                self._stack.pop()
                self.hops += bool(self._stack) and self._stack[-1] != above
            return
        self.calls += 1
        self.hops += file != above
        self.functions.add((file, frame.f_code.co_firstlineno))
        self.files.add(file)
        self._stack.append(file)
        self.depth = max(self.depth, len(self._stack))

    def row(self) -> list[int]:
        """Return calls, functions, files, hops and depth."""
        return [self.calls, len(self.functions), len(self.files), self.hops, self.depth]


def clamped_rod() -> Model:
    """Return a rod of 21 nodes that hangs from its first edge."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.5, 0, 0), 21), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    return builder.finalize(compile=False)


def after(model: Model, steps: int) -> State:
    """Return the state after so many steps."""
    state = model.initial_state(ROBOTS)
    for _ in range(steps):
        state, _ = ImplicitEuler(0.01).step(model, state, throw=True)
    return state


def traced_step(steps_before: int) -> tuple[Trace, StepInfo]:
    """Return the trace of a step after so many others, and the step's `StepInfo`."""
    model, trace = clamped_rod(), Trace()
    state, method = after(model, steps_before), ImplicitEuler(0.01)
    with trace:
        _, info = method.step(model, state)
    return trace, info


def traced_core() -> Trace:
    """Return the trace of the core of a step that is not recorded."""
    model, trace = clamped_rod(), Trace()
    state, method, core = after(model, BEFORE), ImplicitEuler(0.01), forward.solved_step

    def traced(*given: Any) -> object:
        with trace:
            return core(*given)

    with mock.patch.object(forward, "solved_step", traced):
        method.step(model, state)
    return trace


def main() -> None:
    """Print the table."""
    columns: dict[str, Callable[[], Trace]] = {
        "eager": lambda: traced_step(BEFORE)[0],
        "recorded": lambda: traced_step(UNTIL_RECORDED)[0],
        "core": traced_core,
    }
    rows = {name: trace().row() for name, trace in columns.items()}
    print(f"{'':10}" + "".join(f"{name:>10}" for name in rows))
    for k, what in enumerate(("calls", "functions", "files", "hops", "depth")):
        print(f"{what:10}" + "".join(f"{row[k]:10}" for row in rows.values()))


if __name__ == "__main__":
    main()
