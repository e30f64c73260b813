"""The texts of good scenes, of which tests replace, add or leave out tables, and files that such scenes name."""

# A good scene in parts, which tests replace or add to.
GOOD = {
    "robot": "nodes = [[0, 0, 0], [0.1, 0, 0], [0.2, 0, 0], [0.3, 0, 0]]\nrod_edges = [[0, 1], [1, 2], [2, 3]]",
    "rod": 'section = {shape = "circle", radius = 1e-3}\nyoungs = 1e6\ndensity = 1000.0',
    "clamp": "nodes = [0, 1]",
    "simulation": "dt = 0.01\nduration = 0.1",
}
ARRAYS = {"clamp", "move", "mass", "inertia", "point_force", "obstacle"}
FILES = {
    "arm.txt": "*Nodes\n0,0,0\n0.1,0,0\n0.2,0,0\n*Edges\n1,2\n2,3\n",
    "bad.txt": "*Nodes\n0,0,0\n0.1,0,0\n*Edges\n1,2\n2,2\n",
    "lonely.txt": "*Nodes\n0,0,0\n0.1,0,0\n0.2,0,0\n*Edges\n1,2\n",
    "shell.txt": "*Nodes\n0,0,0\n1,0,0\n0,1,0\n*Triangles\n1,2,3\n",
    "mixed.txt": "*Nodes\n0,0,0\n1,0,0\n0,1,0\n*Edges\n1,2\n*Triangles\n1,2,3\n",
    "broken.obj": "v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 7\n",
    "words.ply": "these are words",
    "kappa.csv": "time,a,b\n0,0,0\n1,0.1,0.2\n",
    "short.csv": "0,0\n1,0.1\n",
    "backwards.csv": "0,0,0\n1,0,0\n0.5,0,0\n",
    "words.csv": "0,0,0\n1,0,much\n",
    "nan.csv": "0,0,nan\n",
    "ragged.csv": "0,0,0,0,0\n1,0,0\n",
    "empty.csv": "time,a,b\n",
    "negative.csv": "0,0.1,0.1,-0.1\n",
    "path.csv": "time,x,y,z\n0,0,0,0\n1,0,0,0.1\n",
    "early.csv": "0,0,0,0\n1,0,0,0\n0.5,0,0,0\n",
    "holes.csv": "0,0,0,0\n1,0,nan,0\n",
    "once.csv": "0,0,0,0\n",
    "tetrahedron.obj": "v 0 0 1\nv 1 0 1\nv 0 1 1\nv 0 0 2\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 1 4 3\n",
    "inwards.obj": "v 0 0 1\nv 1 0 1\nv 0 1 1\nv 0 0 2\nf 1 2 3\nf 1 4 2\nf 2 4 3\nf 1 3 4\n",
    "open.obj": "v 0 0 1\nv 1 0 1\nv 0 1 1\nv 0 0 2\nf 1 3 2\nf 1 2 4\nf 2 3 4\n",
    "index.txt": "*Nodes\n0,0,0\n0.1,0,0\n*Edges\n1,99999999999999999999\n",
    "far.txt": "*Nodes\n0,0,0\n1e200,0,0\n*Edges\n1,2\n",
    "underscore.csv": "0,0.1,0.1,0.1\n1,1_0,0.1,0.1\n",
    "infinite.csv": "0,0.1,0.1,inf\n",
    "wide.csv": "0," + "1" * 200_000 + "\n",
    "raises.py": "raise RuntimeError('no')",
    "nothing.py": "x = 1",
}


def scene_text(**tables: str | None) -> str:
    """Return the good scene with some tables replaced, added or (None) left out."""
    parts = []
    for name, body in (GOOD | tables).items():
        if body is not None:
            table = name.replace("__", ".")
            parts.append(f"[[{table}]]\n{body}" if name in ARRAYS else f"[{table}]\n{body}")
    return "\n\n".join(parts) + "\n"


def rod(**changes: str | None) -> str:
    """Return the table [rod] with some keys replaced, added or left out."""
    keys = {"section": '{shape = "circle", radius = 1e-3}', "youngs": "1e6", "density": "1000.0"} | changes
    return "\n".join(f"{name} = {value}" for name, value in keys.items() if value is not None)


def shell(**changes: str | None) -> str:
    """Return the table [shell] with some keys replaced, added or left out."""
    keys = {"thickness": "1e-3", "youngs": "1e6", "density": "1000.0"} | changes
    return "\n".join(f"{name} = {value}" for name, value in keys.items() if value is not None)


def square(triangles: str) -> str:
    """Return the table [robot] of a square with these triangles."""
    return f"nodes = [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]]\ntriangles = {triangles}"


SQUARE = square("[[0, 1, 2], [0, 2, 3]]")


def shell_scene(**tables: str | None) -> str:
    """Return a good scene of a square shell with some tables replaced, added or left out."""
    return scene_text(**({"robot": SQUARE, "rod": None, "shell": shell()} | tables))


def floor(**changes: str | None) -> str:
    """Return the table [floor] with some keys replaced, added or left out."""
    keys = {"height": "-0.1", "stiffness": "10.0"} | changes
    return "\n".join(f"{name} = {value}" for name, value in keys.items() if value is not None)


def constraint(**changes: str | None) -> str:
    """Return the table [floor] of a floor that is a constraint, with some keys replaced or added."""
    return floor(**({"stiffness": None, "response": '"complementarity"'} | changes))


def ball(**changes: str | None) -> str:
    """Return a table [[obstacle]] of a ball far off, with some keys replaced, added or left out."""
    keys = {"shape": '"sphere"', "center": "[0, 0, 1]", "radius": "0.1", "stiffness": "10.0"} | changes
    return "\n".join(f"{name} = {value}" for name, value in keys.items() if value is not None)


def obstacles(*tables: str) -> str:
    """Return a scene with several obstacles."""
    return scene_text() + "".join(f"[[obstacle]]\n{table}\n" for table in tables)


def obstacle(shape: str, **keys: str) -> str:
    """Return a scene with an obstacle of a shape."""
    return scene_text(obstacle=ball(shape=f'"{shape}"', **({"center": None, "radius": None} | keys)))


DRAW = '[batch]\nsize = 4\n[batch.randomize]\n"{}" = {}\n'
