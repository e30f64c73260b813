"""Locks that are safe across forks of the process: a forked child has no thread but the one that forked.

A lock that another thread held would stay locked in the child for ever, and the data that it guards would be half
changed. So a fork waits until its thread holds all these locks, and parent and child release them after it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from weakref import ReferenceType, ref

__all__ = ["lock_for_threads"]

LONGEST = 10.0  # s that a fork waits at most: the thread that holds a lock may itself be waiting for the fork

_locks: set[ReferenceType[threading.RLock]] = set()
_forking = threading.local()


def lock_for_threads() -> threading.RLock:
    """Return a lock that no other thread holds while the process forks, unless one holds it longer than `LONGEST`."""
    lock = threading.RLock()
    _locks.add(ref(lock, _locks.discard))
    return lock


def _taken(locks: Sequence[threading.RLock], seconds: float) -> Sequence[threading.RLock]:
    """Acquire all locks within so many seconds and return them; return an empty list, none acquired, if that fails.

    It blocks on one lock only while it holds no other, as two threads could otherwise wait for each other.
    """
    end, first = time.monotonic() + seconds, 0
    while locks:
        locks = [*locks[first:], *locks[:first]]
        if not locks[0].acquire(timeout=max(0.0, end - time.monotonic())):
            return []
        first = next((k for k, lock in enumerate(locks[1:], start=1) if not lock.acquire(blocking=False)), 0)
        if not first:
            break
        for lock in locks[:first]:
            lock.release()
    return locks


def _take_all() -> None:
    _forking.held = _taken([lock for known in [*_locks] if (lock := known()) is not None], LONGEST)


def _give_back() -> None:
    for lock in _forking.held:
        lock.release()


os.register_at_fork(before=_take_all, after_in_parent=_give_back, after_in_child=_give_back)
