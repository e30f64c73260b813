"""Recordings of steps, of parts of steps and of backward passes: tapes on a CPU, CUDA graphs on a GPU.

A recording holds the operations that a function carried out once; a replay repeats them on the same memory without
running any Python. `recording.py` is the way in: it decides whether a step is recorded, and returns the recording that
takes it. Below it

- *which steps one recording serves*: `step_kind.py`, `model_traits.py`; which models can be recorded: `recordable.py`,
  `declared.py`;
- *the memory that recordings read*: `static_problem.py`, in the order that `step_kind.InputLayout` defines;
- *whole steps*: `step.py`; the Newton iterations in them: `rounds.py`; many steps in a row: `series.py`; a step of the
  parts of a batch, one after the other: `chunk_loop.py`;
- *whole steps of robots whose parts may touch*: which pairs may, found for many steps, `pair_watch.py`; steps in which
  some do `touching_steps.py`, with memory for pairs that change `lasting_pairs.py`; steps on obstacles that are
  constraints `contact_step.py`;
- *parts of steps*, where a whole step cannot be recorded: `evaluations.py`,
  `recorded_call.py`, `equations.py`, `pair_evaluations.py`; and of searches that Python steers, there and where whole
  steps leave their rounds: `search_rounds.py`, `round_tapes.py`;
- *backward passes*: whether they are recorded `gradients.py`, the recording of one `adjoint.py`;
- *how many of the same recordings there are*, for threads that take parts of a batch side by side: `for_threads.py`.
"""
