"""What Python's garbage collector does while torch is imported."""

import gc

import pytest

from torchdismech.system.imports import without_collections


@pytest.fixture(autouse=True)
def nothing_frozen():
    """Leave nothing frozen."""
    yield
    gc.unfreeze()


@pytest.mark.parametrize("collects", [True, False])
def test_what_is_imported_counts_as_old(collects):
    """Keep from looking through what is made meanwhile, then and in the next collections of young objects."""
    passes = []
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    gc.callbacks.append(note := lambda phase, info: passes.append(info))
    try:
        with without_collections():
            made = [[k] for k in range(10_000)]
            assert not passes
        assert gc.isenabled() == collects
    finally:
        gc.callbacks.remove(note)
        (gc.enable if before else gc.disable)()
    # looked at by identity, as comparing lists would take long
    old = {id(thing) for thing in gc.get_objects(generation=2)}
    assert all(id(thing) in old for thing in made)


def test_what_a_program_froze_stays_frozen():
    """Leave alone what a program has frozen itself: looked at by one object, as others may be freed meanwhile."""
    mine = [[]]
    gc.freeze()
    with without_collections():
        pass
    # frozen objects are in none of the generations that are looked through
    assert all(thing is not mine for thing in gc.get_objects())
