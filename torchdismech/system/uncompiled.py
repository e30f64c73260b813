"""`uncompiled`: functions that torch.compile leaves out where a user compiles code that calls them.

Steps change what the library keeps from step to step, and run compiled code and recordings of their own. torch.compile
cannot follow them: it would cut them into hundreds of pieces, and fail at some.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

__all__ = ["uncompiled"]

F = TypeVar("F", bound=Callable)


def uncompiled(function: F) -> F:
    """Mark a function, and return it: where torch.compile meets it, it runs as it is, with all that it calls.

    Decorators go above this one: the code of what they return is often shared by many functions.

    `torch.compiler.disable` does the same, but imports the compiler, for a second, and lays two calls around each call.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined] # a graph ends before a call of it
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return function
