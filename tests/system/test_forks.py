"""A child that is forked while another thread works."""

import multiprocessing
import threading
import time

import pytest

from tests.rods import rod_through
from torchdismech import Circle, ImplicitEuler, Material, forces, rollout, straight
from torchdismech.system import forks

FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


def test_a_child_steps_what_another_thread_steps():
    """Fork while a thread of the parent is in the midst of a step: the child takes the same steps as the parent."""
    loads = [forces.Gravity((0, 0, -9.81))]
    model = rod_through(straight((0, 0, 0), (0.3, 0, 0), 9), Circle(5e-3), Material(1e6, 1000.0), loads).finalize()
    over = threading.Event()

    def last() -> list[float]:
        return rollout(model, model.initial_state(), ImplicitEuler(1e-2), steps=3).positions[-1].flatten().tolist()

    def step_on() -> None:
        while not over.is_set():
            last()

    expected, thread = last(), threading.Thread(target=step_on)
    thread.start()
    try:
        receiving, sending = FORK.Pipe(duplex=False)
        while model.lock.acquire(blocking=False):  # until the thread is within a step
            model.lock.release()
        child = FORK.Process(target=lambda: sending.send(last()))
        child.start()
        found = receiving.recv() if receiving.poll(10) else None
        child.kill()
        child.join()
    finally:
        over.set()
        thread.join()
    assert found == expected


def test_locks_that_are_taken_in_another_order():
    """Take all, waiting for none while holding another, and give up where one is held for too long."""
    first, second = forks.lock_for_threads(), forks.lock_for_threads()
    begun, over = threading.Event(), threading.Event()

    def both() -> None:
        with second:
            begun.set()
            time.sleep(0.05)
            with first:  # which whoever waits for the second one must not hold
                over.wait(5)

    thread = threading.Thread(target=both)
    thread.start()
    begun.wait()
    started = time.monotonic()
    assert not forks._taken([first, second], 0.3)
    assert time.monotonic() - started < 2
    over.set()
    assert {*map(id, forks._taken([first, second], 5))} == {id(first), id(second)}
    thread.join()
    first.release()
    second.release()
