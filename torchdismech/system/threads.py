"""How the threads of torch's operations wait for each other: soon asleep, so that other work can have the core.

OpenMP's threads spin while they wait. On a machine that other work shares, the one that is waited for may not be
running at all, and a step, thousands of small operations, then takes ten times as long and more. OpenMP reads how to
wait from the environment as it is loaded, with torch; `sleep_while_waiting` therefore runs before anything else of
this package is imported.
"""

from __future__ import annotations

import ctypes
import os
import sys
import warnings

__all__ = ["sleep_while_waiting"]

POLICY = "OMP_WAIT_POLICY"  # of every OpenMP: GNU's, LLVM's, Intel's
SPINS = "GOMP_SPINCOUNT"  # of GNU's OpenMP: how often a thread looks whether its wait is over, before it sleeps
# 3 to 100 us, as cores pause differently between two looks. To wake up takes as long as many an operation: a call of
# chains on two threads takes 1290 us without any spinning, 655 with 1,000 looks or more. Beside a busy process each
# product of small matrices waits until the looks are over: .13 ms, with 10,000 of them 1 ms.
FEW = "1000"
CHOSEN_BY = (POLICY, SPINS, "KMP_BLOCKTIME", "KMP_LIBRARY")  # if one is set, the user has chosen


def sleep_while_waiting() -> None:
    """Let the threads of torch's operations soon sleep while they wait, unless the user has chosen how they wait.

    Where torch is loaded already, LLVM's and Intel's OpenMP can still be changed. GNU's cannot: then a warning says
    what to do, if other work keeps cores busy now.
    """
    if any(name in os.environ for name in CHOSEN_BY):
        return
    if "torch" not in sys.modules:
        os.environ |= {POLICY: "PASSIVE", SPINS: FEW}
        return
    loaded = ctypes.CDLL(None)  # the symbols of all libraries that the process has loaded
    if hasattr(loaded, "kmp_set_blocktime"):
        loaded.kmp_set_blocktime(0)
    else:
        _warn_if_busy()


def _warn_if_busy() -> None:
    """Warn where torch's threads and the other work of the machine together need more cores than there are."""
    threads, cores, busy = sys.modules["torch"].get_num_threads(), os.cpu_count() or 1, os.getloadavg()[0]
    if threads > 1 and threads + busy >= cores + 1:
        warnings.warn(
            f"torch was imported before torchdismech, so its {threads} threads spin while they wait for each other, "
            f"and other work keeps {busy:.1f} of {cores} cores busy: steps may take ten times as long. Import "
            f"torchdismech first, or set {POLICY}=PASSIVE (or OMP_NUM_THREADS=1) before Python starts",
            RuntimeWarning,
            stacklevel=4,
        )
