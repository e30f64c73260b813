"""Malformed scenes: how contact pushes, rubs and is drawn."""

import pytest

from tests.io.refusals import assert_refused
from tests.io.scene_texts import DRAW, GOOD, ball, constraint, floor, scene_text

MALFORMED = {
    # contact: the law
    "floor without stiffness": (scene_text(floor="height = -0.1"), "floor.stiffness: missing (of each contact [N/m]"),
    "soft as nothing": (scene_text(floor=floor(stiffness="0.0")), "floor.stiffness: expected greater than 0", "0.0"),
    "negative stiffness": (scene_text(self_contact="stiffness = -1.0"), "self_contact.stiffness: expected", "-1.0"),
    "negative friction": (
        scene_text(floor=floor(friction="-0.1")),
        "floor.friction: expected greater than or equal to 0",
        "got -0.1",
    ),
    "friction of nan": (scene_text(floor=floor(friction="nan")), "floor.friction: expected", "got nan"),
    "slip without friction": (
        scene_text(floor=floor(slip_velocity="1e-3")),
        "floor: slip_velocity belongs to friction, which is not given",
    ),
    "no slip velocity": (
        scene_text(floor=floor(friction="0.1", slip_velocity="0.0")),
        "floor.slip_velocity: expected greater than 0",
    ),
    "tolerance of zero": (
        scene_text(obstacle=ball(tolerance="0")),
        "obstacle.0.tolerance: expected greater than 0",
        "got 0",
    ),
    "unknown response": (
        scene_text(floor=floor(response='"spring"')),
        "floor.response: expected 'penalty', 'barrier' or 'complementarity'",
        "got 'spring'",
    ),
    "obstacle without stiffness": (
        scene_text(obstacle=ball(stiffness=None, response='"barrier"')),
        "obstacle.0.stiffness: missing (of each contact [N/m]",
    ),
    "self-contact without stiffness": (scene_text(self_contact="friction = 0.1"), "self_contact.stiffness: missing"),
    "stiffness of a constraint": (
        scene_text(floor=constraint(stiffness="1.0")),
        'floor.stiffness: response = "complementarity" has no stiffness',
        "remove the key",
    ),
    "stiffness of an obstacle's constraint": (
        scene_text(obstacle=ball(response='"complementarity"')),
        "obstacle.0.stiffness: response",
    ),
    "stiffness of a constraint with itself": (
        scene_text(self_contact='stiffness = 1.0\nresponse = "complementarity"'),
        "self_contact.stiffness: response",
    ),
    "slip velocity of a constraint": (
        scene_text(floor=constraint(friction="0.1", slip_velocity="1e-3")),
        'floor: slip_velocity: response = "complementarity" does not smooth friction',
        "remove the key",
    ),
    "constraint of no tolerance": (
        scene_text(floor=constraint(tolerance="0.0")),
        "floor.tolerance: expected greater than 0",
    ),
    "negative friction of a constraint": (
        scene_text(floor=constraint(friction="-0.1")),
        "floor.friction: expected greater than or equal to 0",
    ),
    "constraint in newmark": (
        scene_text(floor=constraint(), simulation=GOOD["simulation"] + '\nintegrator = "newmark"'),
        'floor.response: expected "penalty" or "barrier" with integrator = "newmark", got "complementarity"',
        '"implicit_euler"',
    ),
    "constraint in the midpoint rule": (
        scene_text(
            obstacle=ball(stiffness=None, response='"complementarity"'),
            simulation=GOOD["simulation"] + '\nintegrator = "implicit_midpoint"',
        ),
        'obstacle.0.response: expected "penalty" or "barrier" with integrator = "implicit_midpoint"',
    ),
    "constraint without line search": (
        scene_text(floor=constraint(), simulation=GOOD["simulation"] + "\nline_search = false"),
        "simulation.line_search: expected true, got false",
        "floor.response",
    ),
    "drawing the stiffness of a constraint": (
        scene_text(floor=constraint()) + DRAW.format("floor.stiffness", "{uniform = [1, 2]}"),
        "batch.randomize.\"floor.stiffness\": there is no 'stiffness' in the scene",
    ),
    "drawing the slip velocity of a constraint": (
        scene_text(floor=constraint(friction="0.1")) + DRAW.format("floor.slip_velocity", "{uniform = [1, 2]}"),
        'batch.randomize."floor.slip_velocity".uniform: numbers near 1 may be drawn',
        "does not smooth friction",
    ),
    "barrier without line search": (
        scene_text(floor=floor(response='"barrier"'), simulation=GOOD["simulation"] + "\nline_search = false"),
        "simulation.line_search: expected true, got false",
        "floor.response",
    ),
    "drawn friction below zero": (
        scene_text(floor=floor(friction="0.1")) + DRAW.format("floor.friction", "{uniform = [-2, -1]}"),
        'batch.randomize."floor.friction".uniform: numbers near -2 may be drawn: expected greater than or equal to 0',
    ),
    "drawing a friction that is not set": (
        scene_text(floor=floor()) + DRAW.format("floor.friction", "{uniform = [0, 1]}"),
        "batch.randomize.\"floor.friction\": there is no 'friction' in the scene",
    ),
    "drawing the ring": (
        scene_text(self_contact="stiffness = 1.0\nring = 1") + DRAW.format("self_contact.ring", "{uniform = [0, 1]}"),
        'batch.randomize."self_contact.ring": this number cannot differ',
    ),
}


@pytest.mark.parametrize("case", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_scene_is_refused(folder, case):
    """Name file and key and say what was expected."""
    assert_refused(folder, *case)
