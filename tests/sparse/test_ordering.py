"""Orders of elimination: bandwidths of chains, trees of separators."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.solve.topologies import chain, cliques, grid, random_graph, ring, star
from torchdismech.errors import InputError
from torchdismech.sparse import Pattern
from torchdismech.sparse.ordering import banded_order, nested_dissection


def ancestors(nodes, k):
    """Return the node k and all that come above it."""
    found = {k}
    while nodes[k].parent >= 0:
        k = nodes[k].parent
        found.add(k)
    return found


def check_tree(pattern, leaf_size):
    """Assert that the tree holds every unknown once and that entries join ancestors and descendants only."""
    nodes = nested_dissection(pattern, leaf_size)
    unknowns = np.concatenate([node.unknowns for node in nodes])
    np.testing.assert_array_equal(np.sort(unknowns), np.arange(pattern.n))
    assert all(node.parent == -1 or node.parent > k for k, node in enumerate(nodes))
    owner = np.empty(pattern.n, dtype=int)
    for k, node in enumerate(nodes):
        owner[node.unknowns] = k
    above = [ancestors(nodes, k) for k in range(len(nodes))]
    for a, b in zip(owner[pattern.rows], owner[pattern.cols], strict=True):
        assert b in above[a] or a in above[b]
    return nodes


class TestBandedOrder:
    """The narrowest of hint, own numbering and reverse Cuthill-McKee."""

    def test_interleaved_hint_of_a_rod_gives_half_bandwidth_10(self):
        """Walk x0, theta0, x1, theta1, ...: a three-node spring spans 11 unknowns."""
        order = banded_order(chain(101))
        assert (order.lower, order.upper) == (10, 10)

    def test_reverse_cuthill_mckee_steps_in_without_a_hint(self):
        """Find a band not much wider than the best one when x and theta are numbered apart."""
        order = banded_order(chain(101, hint=False))
        assert order.lower <= 14

    def test_hint_is_followed_where_it_is_narrower(self):
        """Take a hint that beats reverse Cuthill-McKee."""
        rng = np.random.default_rng(0)
        walk = rng.permutation(40)
        groups = [(walk[i], walk[j]) for i in range(40) for j in range(i + 1, min(40, i + 4)) if rng.random() < 0.5]
        assert banded_order(cliques(groups, 40)).lower > 3
        assert banded_order(cliques(groups, 40, hint=walk)).lower == 3

    @pytest.mark.parametrize("hint", [np.arange(40)[::-1], np.arange(40, dtype=np.int32), range(40)])
    def test_hint_of_any_type_is_read_as_it_is(self, hint):
        """Return an order that compiled code can read by its address: it read beyond the end of these."""
        order = banded_order(cliques([(k, k + 1) for k in range(39)], 40, hint=hint)).order
        np.testing.assert_array_equal(order, np.array(hint))
        assert order.dtype == np.int64 and order.flags.c_contiguous

    def test_bad_hint_is_not_followed(self):
        """Prefer a better order to a random hint."""
        pattern = chain(41)
        shuffled = np.random.default_rng(0).permutation(pattern.n)
        bad = Pattern(pattern.n, pattern.rows, pattern.cols, True, shuffled)
        assert banded_order(bad).lower <= 14

    def test_place_inverts_order(self):
        """Return an order and its inverse."""
        order = banded_order(star())
        np.testing.assert_array_equal(order.order[order.place], np.arange(len(order.order)))

    def test_unsymmetric_bandwidths_are_told_apart(self):
        """Count below and above the diagonal separately."""
        pattern = Pattern.union(5, [1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 2, 3, 4], False, np.arange(5))
        order = banded_order(pattern)
        assert (order.lower, order.upper) == (1, 2)

    def test_pattern_without_unknowns_is_refused(self):
        """Say what to do when everything is clamped."""
        with pytest.raises(InputError, match="clamped"):
            banded_order(Pattern.union(0, [], [], True))


class TestNestedDissection:
    """A tree of separators."""

    @pytest.mark.parametrize("make", [chain, ring, star, grid], ids=lambda f: f.__name__)
    @pytest.mark.parametrize("symmetric", [True, False])
    def test_separators_separate(self, make, symmetric):
        """Hold every unknown once; entries never join two branches."""
        check_tree(make(symmetric=symmetric), 24)

    @given(seed=st.integers(0, 10_000), n=st.integers(1, 60), leaf_size=st.integers(1, 20))
    @settings(max_examples=40, deadline=None)
    def test_any_graph(self, seed, n, leaf_size):
        """Hold also for random graphs: disconnected ones, single vertices, cliques."""
        check_tree(random_graph(n, np.random.default_rng(seed)), leaf_size)

    def test_chain_gets_a_shallow_tree_and_minimal_separators(self):
        """Cut a rod at one node and its two edges' worth: 7 unknowns; halve it each time."""
        nodes = nested_dissection(chain(101), 24)
        inner = {node.parent for node in nodes} - {-1}
        assert max(len(nodes[k].unknowns) for k in inner) == 7
        depth = max(len(ancestors(nodes, k)) for k in range(len(nodes)))
        assert depth <= 7  # 403 unknowns halved to 24: five cuts, one more for uneven ones, and the leaf

    def test_grid_separator_is_about_one_line(self):
        """Cut a 12 x 12 grid of 3 unknowns a node near its middle: one or two lines of nodes."""
        nodes = nested_dissection(grid(12), 24)
        assert len(nodes[-1].unknowns) <= 2 * 12 * 3

    def test_clique_is_one_node(self):
        """Leave alone what no separator can cut."""
        assert len(nested_dissection(cliques([range(40)], 40), 24)) == 1

    def test_same_order_every_time(self):
        """Be reproducible."""
        first, second = (nested_dissection(grid(14), 24) for _ in range(2))
        assert all(np.array_equal(a.unknowns, b.unknowns) for a, b in zip(first, second, strict=True))
