"""Compiled steps that are recorded, by the stand-in for graphs and one for torch.compile."""

from tests.compilation.rods import rod
from tests.integrate.recordings import Graphs
from torchdismech import ImplicitEuler
from torchdismech.elastic.assembly import Assembly
from torchdismech.integrate.recorded import step_kind


def test_elastic_terms_are_programs_of_their_own(compiled, monkeypatch):
    """Make the programs of elastic terms before anything is compiled: what torch makes of them is ten times as slow."""
    made = []
    monkeypatch.setattr(Assembly, "record", lambda self, q, constants: made.append(len(compiled)))
    Graphs(monkeypatch, "graphs")
    # the sum of loads is given to a graph, as on a GPU
    monkeypatch.setattr(step_kind, "is_recordable_force", lambda force: False)
    model = rod(compile=True)
    state = model.initial_state(batch=2)
    made.clear()
    ImplicitEuler(1e-2).step(model, state, throw=True)
    assert compiled and made[0] == 0
