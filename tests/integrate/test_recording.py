"""Steps by recordings: the same steps and gradients as without, also of rows that fail and of parts of a batch."""

import copy
import functools

import pytest
import torch

from tests.integrate.recordings import (
    BATCH,
    INTEGRATORS,
    ROBOTS,
    assert_same,
    compare,
    rods,
    steps,
    thrown,
    trained,
)
from torchdismech import (
    ImplicitEuler,
    Status,
)
from torchdismech.integrate.recorded import recording, rounds


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_steps_are_the_same(graphs, integrator, robot):
    """Give what steps without graphs give, bit by bit, and really replay."""
    found, expected = compare(graphs, lambda model: steps(model, INTEGRATORS[integrator]()), ROBOTS[robot]())
    assert_same(found, expected)
    # set-up, two kinds of rounds, end; corrections where the norm of a robot's residual rises
    assert 4 <= len(graphs.made) <= 5
    assert graphs.replays >= 4 * 3


def test_results_are_kept(graphs):
    """Return tensors that later steps do not write to."""
    model, integrator = rods(), ImplicitEuler(1e-2)
    state, info = integrator.step(model, model.initial_state())
    before = [t.clone() for t in (*state.fields(), info.status, info.residual, info.tolerance)]
    integrator.step(model, state)
    assert_same([*state.fields(), info.status, info.residual, info.tolerance], before)


def test_rows_that_do_not_run(graphs):
    """Leave them alone, others from step to step."""

    def run(model):
        found, state = [], model.initial_state()
        for k in range(3):
            state, info = ImplicitEuler(1e-2).step(model, state, running=torch.arange(BATCH) % 3 != k)
            found += [state.q, state.time, info.status, info.iterations]
        return found

    assert_same(*compare(graphs, run, rods()))


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_parts_of_a_batch(graphs, integrator):
    """Serve all parts by the same graphs, each with its own constants."""
    make = INTEGRATORS[integrator]
    found, expected = compare(graphs, lambda model: steps(model, make(chunk=4)), rods())
    assert_same(found, expected)
    assert len(graphs.made) == 4
    whole = steps(rods(), make(chunk=None))
    assert_same([x for x in found if x.is_floating_point()], [x for x in whole if x.is_floating_point()], within=1e-11)


def test_memory_is_bounded(graphs, monkeypatch):
    """Keep the recordings that served last."""
    monkeypatch.setattr(recording, "KINDS_KEPT", 2)
    model = rods()
    make = [functools.partial(ImplicitEuler, 1e-2, max_iterations=20 + k) for k in range(3)]
    for k, recordings in ((0, 1), (1, 2), (0, 2), (2, 3), (0, 3), (1, 4)):
        steps(model, make[k](), 1)
        assert (len(graphs.made), len(model.recordings)) == (4 * recordings, min(recordings, 2))


class TestFailingRows:
    """What a graph does not hold."""

    @pytest.mark.parametrize("options", [{}, {"max_iterations": 3}, {"line_search": False}, {"max_substeps": 8}])
    def test_search_goes_on(self, graphs, options):
        """End where steps without graphs end: with line searches, other attempts, substeps; or give up likewise."""

        def run(model):
            integrator = ImplicitEuler(2e-2, **options)
            found = steps(model, integrator, 3, state=thrown(model))
            return found + steps(model, integrator, 1)  # and the graphs serve the next step

        found, expected = compare(graphs, run, rods())
        assert_same(found, expected)
        status = found[6]
        assert status[0] != Status.CONVERGED
        assert (status[1:3] == Status.CONVERGED).all()

    def test_a_surprise_in_the_last_round(self, graphs, monkeypatch):
        """Find the matrix that was left out where a round was not the last one after all."""
        whole, seen = rounds.tried_steps, []

        def hopeful(*given, with_matrix=True):
            """Expect each round to be the last."""
            steps = whole(*given, with_matrix=with_matrix)
            seen.append(with_matrix)
            flags = steps.flags.clone()
            flags[3] = True
            return steps._replace(flags=flags)

        expected = steps(rods(), ImplicitEuler(1e-2), 3)
        graphs.switch(True)
        monkeypatch.setattr(rounds, "tried_steps", hopeful)
        graphs.made.clear()
        assert_same(steps(rods(), ImplicitEuler(1e-2), 3), expected)
        assert False in seen


class TestGradients:
    """The backward pass knows nothing of graphs."""

    @pytest.mark.parametrize("chunk", [None, 4])
    @pytest.mark.parametrize("robot", ["rods", "hinges"])
    def test_they_are_the_same(self, graphs, robot, chunk):
        """Give the same gradients by states and constants, over steps of an optimiser."""
        run = functools.partial(trained, robot=robot, chunk=chunk)
        found, expected = compare(graphs, run, ROBOTS[robot]())
        assert_same(found, expected)
        assert (found[1] != 0).all()


def test_copies_record_for_themselves(graphs):
    """Share no recordings with a copy."""
    model = rods()
    steps(model, ImplicitEuler(1e-2), 1)
    assert model.recordings
    assert not copy.deepcopy(model).recordings
