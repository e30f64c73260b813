"""Scenes with odd values anywhere: read, or refused."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.io.scene_texts import ARRAYS, GOOD
from torchdismech import InputError
from torchdismech.io.scene import load_scene

values = st.one_of(
    st.none().map(lambda _: '""'),
    st.booleans().map(lambda b: str(b).lower()),
    st.integers(-3, 3).map(str),
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.sampled_from(["[]", "{}", "[[]]", '"x"', "[1, 2, 3]", "{shape = 3}", "1979-05-27", "[{}]"]),
)
keys = st.sampled_from(
    [
        "robot.file",
        "robot.nodes",
        "robot.rod_edges",
        "robot.planar",
        "rod.section",
        "rod.youngs",
        "rod.stiffness",
        "rod.natural",
        "rod.box",
        "mass",
        "clamp",
        "move",
        "environment.gravity",
        "environment.resistive",
        "point_force",
        "floor",
        "floor.stiffness",
        "obstacle",
        "obstacle.shape",
        "obstacle.velocity",
        "obstacle.file",
        "self_contact.response",
        "self_contact.ring",
        "actuation.natural_curvature",
        "actuation.python",
        "simulation.integrator",
        "simulation.dt",
        "simulation.duration",
        "simulation.load_steps",
        "simulation.solver",
        "batch.size",
        "batch.seed",
        "batch.randomize",
        "output.every",
        "output",
        "robot",
        "rod",
        "simulation",
        "nonsense",
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=keys, value=values)
def test_any_value_anywhere_is_accepted_or_refused(folder, key, value):
    """Put odd values under keys of the good scene: it is read, or refused by an InputError, never anything else."""
    table, _, name = key.partition(".")
    good = GOOD.get(table, "")
    lines = [line for line in good.splitlines() if not line.startswith(f"{name} =")]
    text = "".join(f"[[{t}]]\n{b}\n" if t in ARRAYS else f"[{t}]\n{b}\n" for t, b in GOOD.items() if t != table)
    if name:
        text += f"[{table}]\n" + "\n".join([*lines, f"{name} = {value}"])
    else:
        text = f"{table} = {value}\n{text}"
    path = folder / "any.toml"
    path.write_text(text)
    try:
        load_scene(path)
    except InputError as error:
        assert str(error).startswith(str(folder))
