"""Functions of users that take steps, compiled by torch.compile."""

import warnings

import pytest
import torch

from tests.compilation.rods import rod
from tests.constant_curvature.arms import paper_arm
from torchdismech import ImplicitEuler, Static, follow, modes, rollout, trainable, unroll
from torchdismech.constant_curvature import ArmIntegrator
from torchdismech.rigid import Radau, RigidChain


class Network(torch.nn.Module):
    """A user's module: a network, steps of a robot, and another network."""

    def __init__(self):
        super().__init__()
        self.model, self.integrator = rod(), ImplicitEuler(1e-2)
        trainable.scaled(self.model, ["bend_twist.EI1", "bend_twist.EI2"])
        self.first = torch.nn.Linear(4, self.model.n_dofs, dtype=torch.float64)
        self.last = torch.nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, seen):
        """Return what the last network makes of the tip after steps from the velocity that the first one chose."""
        state = self.model.initial_state(velocity=1e-2 * self.first(seen))
        state, _ = self.integrator.step(self.model, state)
        run = unroll(self.model, state, self.integrator, 2)
        with torch.no_grad():
            after = rollout(self.model, run.state, self.integrator, 2).positions[-1]
        bent = self.model.energies(run.state)["bend"]
        return self.last(run.positions[-1, :, -1] + after[:, -1]) + bent[:, None]


@pytest.mark.parametrize("rows", [1, 3])
def test_steps_in_a_compiled_module_run_as_they_are(rows):
    """Compile such a module: each network is a graph, steps are in none, and numbers and gradients are the same."""
    torch.manual_seed(0)
    network, seen, graphs = Network(), torch.randn(rows, 4, dtype=torch.float64), []

    def backend(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    gradients = []
    for function in (network, torch.compile(network, backend=backend)):
        network.zero_grad()
        with warnings.catch_warnings(record=True) as told:
            result = function(seen)
        assert not [warning for warning in told if "torchdismech" in str(warning.message)]
        result.sum().backward()
        gradients.append([result, *(p.grad for p in network.parameters() if p.requires_grad)])
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
    linear = [graph for graph in graphs if any("linear" in name for name in graph)]
    assert len(linear) == 2 and len(graphs) <= 4 and sum(map(len, graphs)) < 15, graphs


def test_analyses_in_a_compiled_function_run_as_they_are():
    """Compile a function that looks at an equilibrium: no graph holds any of it, and the numbers are the same."""
    model, integrator, graphs = rod(), ImplicitEuler(1e-2), []
    state, _ = Static().step(model, model.initial_state(), throw=True)

    def looked_at(factor):
        path = follow(model, model.initial_state(), last=1.0, steps=2, length=0.5)
        lowest = modes(model, state, count=1)
        held = integrator.reactions(model, state, integrator.step(model, state)[0])
        return factor * torch.cat([path.load_factor.flatten(), lowest.eigenvalue.flatten(), held.flatten()])

    def backend(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    factor = torch.full((), 2.0, dtype=torch.float64)
    assert torch.equal(torch.compile(looked_at, backend=backend)(factor), looked_at(factor))
    assert len(graphs) == 1 and len(graphs[0]) < 8, graphs


@pytest.mark.parametrize(
    ("made", "integrator"),
    [
        (
            lambda: RigidChain.cylinder(2, length=0.3, diameter=6e-3, density=1e3, youngs=2e7, viscosity=1e5),
            Radau(1e-2),
        ),
        (paper_arm, ArmIntegrator(1e-3)),
    ],
)
def test_steps_of_reduced_models_run_as_they_are(made, integrator):
    """Compile a function that begins, steps and reports a chain or an arm: a graph before and one after, no more."""
    model, graphs = made(), []

    def tip(factor):
        bent = model.initial_state(q=factor * torch.full((1, model.n_dofs), 1e-2, dtype=torch.float64))
        state, _ = integrator.step(model, bent)
        return factor * (state.q.sum() + sum(model.energies(state).values()))

    def backend(graph, inputs):
        graphs.append(len(graph.graph.nodes))
        return graph

    factor = torch.full((), 2.0, dtype=torch.float64)
    assert torch.equal(torch.compile(tip, backend=backend)(factor), tip(factor))
    assert len(graphs) <= 4 and sum(graphs) < 30, graphs
