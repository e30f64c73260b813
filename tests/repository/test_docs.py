"""The pages of docs/: what has to be on them, and the site that is made of them."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from torchdismech import Model, RobotBuilder, Status, __version__, public

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
OF_SCENES = {"actuation.python"}  # keys of scenes that look like names of a module
NO_ROBOTS = {"basics", "sim_to_real", "__pycache__"}  # folders without a command of their own


@pytest.fixture
def pages(monkeypatch):
    """Return docs/pages.py, which writes the pages that are generated."""
    monkeypatch.syspath_prepend(str(DOCS))
    import pages

    return pages


def test_every_status_has_a_cure():
    """Find each reason for which a step fails in the table of symptoms, with a cause and what to do."""
    text = (DOCS / "symptoms.md").read_text(encoding="utf-8")
    rows = {
        name: cells for name, *cells in re.findall(r"^\| `([A-Z_]+)` \|([^|]*)\|([^|]*)\|", text, flags=re.MULTILINE)
    }
    assert set(rows) == set(Status.__members__)
    assert all(cell.strip() for name, cells in rows.items() if name != "CONVERGED" for cell in cells)


def test_the_citation_names_the_version():
    """Cite the version that is here, and tell its users what is new in it."""
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("kind", "page"), [("examples", DOCS / "gallery.md"), ("studies", ROOT / "studies" / "README.md")]
)
def test_every_robot_is_in_its_table(kind, page):
    """Find each folder of examples/ in the gallery, each of studies/ on its page, and the module of each command."""
    text = (ROOT / page).read_text(encoding="utf-8")
    folders = {path.name for path in (ROOT / kind).iterdir() if path.is_dir()} - NO_ROBOTS
    named = set(re.findall(r"^\| `(\w+)\.(\w+)", text, flags=re.MULTILINE))
    assert folders == {folder for folder, _ in named}
    assert all((ROOT / kind / folder / f"{module}.py").exists() for folder, module in named)


def test_commands_name_what_is_there():
    """Find the module of each `python -m examples.` and `python -m studies.` in all pages."""
    for page in (ROOT / "README.md", *DOCS.glob("*.md")):
        for module in re.findall(r"\b((?:examples|studies)(?:\.\w+)+)", page.read_text(encoding="utf-8")):
            assert ROOT.joinpath(*module.split(".")).with_suffix(".py").exists(), (page.name, module)


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.stem)
def test_pages_name_what_exists(page):
    """Find what pages name of the package's modules, such as `forces.Gravity`, and methods of builders and models."""
    modules = {name: getattr(public, name) for name in public.__all__}
    owners = {name: found for name, found in modules.items() if isinstance(found, ModuleType)}
    owners |= {"builder": RobotBuilder, "model": Model}
    for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
        for owner, name, call in re.findall(r"(?<![\w.\[\"/])(\w+)\.(?!py\b)([A-Za-z_]\w*)(\()?", code):
            if owner in owners and f"{owner}.{name}" not in OF_SCENES and (owner != "model" or call):
                assert hasattr(owners[owner], name), f"{page.name}: `{code}`"


def test_movies_of_the_gallery_are_small():
    """Keep each movie below 400 kB, which a page of ten of them loads in a moment, and show all of them."""
    movies = list((DOCS / "pictures").glob("*.gif"))
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert movies and all(f"(pictures/{movie.name})" in text for movie in movies)
    assert not [movie.name for movie in movies if movie.stat().st_size > 400_000]


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "studies" / "README.md", *sorted(DOCS.glob("*.md"))])
def test_links_lead_somewhere(page):
    """Find the file of each link to a file; the site's builder follows the headings, too."""
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_every_public_name_is_documented(pages):
    """Find a docstring of each public name, and each name of the package on a page of the reference."""
    texts = dict(pages.reference())
    assert all(f"[`{name}`]" in texts["reference/index.md"] for name in public.__all__)
    assert len(texts) == len(pages.ROOMS) + 1


def test_a_name_without_a_docstring_is_refused(pages):
    """Name what nothing is said about."""
    module = type(sys)("made_up")
    module.silent, module.__all__ = lambda: None, ["silent"]
    with pytest.raises(ValueError, match="made_up.*silent"):
        pages.documented_names(module)


def test_every_scene_key_is_on_its_page(pages):
    """Find all tables of the schema, each kind of obstacle, and what may be drawn."""
    text = pages.scene_keys()
    for line in ("## [simulation]", '## [[obstacle]] with shape = "box"', "## [rod.section] with shape", "`youngs`\\*"):
        assert line in text


def test_every_config_key_is_on_its_page(pages):
    """Find all tables of a fit's config, and something said of each key whose name does not say it all."""
    text = pages.config_keys()
    for line in (
        "## Without a table",
        "## [data.rules]",
        "## [robot] with scene",
        "## [[stages]]",
        "## [constants.NAME]",
    ):
        assert line in text
    silent = {row.split("`")[1] for row in text.splitlines() if row.startswith("| `") and row.endswith("|  |")}
    assert silent == {"at", "weights"}  # of markers: said where the edge and the triangle are


def test_pages_of_other_versions_are_removed(pages, monkeypatch, tmp_path):
    """Write what has changed, and leave no page that is not generated any more."""
    left = tmp_path / "generated" / "reference" / "left.md"
    left.parent.mkdir(parents=True)
    left.write_text("# Left")
    monkeypatch.setattr(pages, "_texts", lambda source: iter([("reference/index.md", "# Index")]))
    pages.write(tmp_path)
    assert [path.name for path in left.parent.iterdir()] == ["index.md"]


def test_names_of_what_is_not_imported_are_read_in_its_source(pages, tmp_path):
    """Find the public names of modules of the extra [rl] without its packages; refuse those nothing is said about."""
    for module in pages.OF_AN_EXTRA:
        assert module in {name for room in pages.ROOMS.values() for name in room.modules}
    assert "RobotEnv" in pages.names_in_source(ROOT / "torchdismech" / "environments" / "gym.py")
    (tmp_path / "made_up.py").write_text('__all__ = ["silent"]\ndef silent():\n    pass\n')
    with pytest.raises(ValueError, match="made_up.*silent"):
        pages.names_in_source(tmp_path / "made_up.py")


def test_signatures_say_types_without_their_checks(monkeypatch):
    """Leave out what checks a type, also of one type in another."""
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(DOCS))
    from docstrings import plain_signature

    given = "(a: Annotated[tuple[Annotated[float, Gt(gt=0)], ...], MinLen(1, x=[2])] | None = None, b: int = 1)"
    found = plain_signature(None, "function", "f", None, None, given, "Annotated[int, Ge(ge=0)]")
    assert found == ("(a: tuple[float, ...] | None = None, b: int = 1)", "int")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("sphinx") is None, reason="needs the extra [docs]")
def test_the_site_is_built(tmp_path):
    """Build the site without a warning; fail where a link leads nowhere."""
    copy = tmp_path / "docs"
    shutil.copytree(DOCS, copy, ignore=shutil.ignore_patterns("generated"))
    shutil.copytree(ROOT / "examples" / "basics", tmp_path / "examples" / "basics")
    (tmp_path / "studies").mkdir()
    shutil.copy(ROOT / "studies" / "README.md", tmp_path / "studies")
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-b", "html", copy, tmp_path / "site"]
    good = subprocess.run(build, capture_output=True, text=True)
    assert good.returncode == 0, good.stderr
    reference = (tmp_path / "site" / "generated" / "reference" / "contact.html").read_text(encoding="utf-8")
    assert 'id="torchdismech.contact.Penalty"' in reference
    (copy / "start.md").write_text((copy / "start.md").read_text(encoding="utf-8") + "\n[nowhere](nowhere.md)\n")
    broken = subprocess.run(build, capture_output=True, text=True)
    assert broken.returncode != 0 and "nowhere" in broken.stderr


def test_docstrings_are_read_as_they_are_written(monkeypatch):
    """Put prose below names, keep sentences, and take no mark of reStructuredText outside of backticks for one."""
    monkeypatch.syspath_prepend(str(DOCS))
    from docstrings import as_restructured_text

    head = ["Return |u| * `a*b`.", "", "Parameters", "----------"]
    lines = [
        *head,
        "a, b : numbers [m]",
        "    or more.",
        "Others as for `Model`.",
        "",
        "Raises",
        "------",
        "InputError",
    ]
    as_restructured_text(None, "class", "x", None, None, lines)
    assert lines[0] == r"Return \|u\| \* `a*b`."
    assert lines[4:8] == ["a, b", "    numbers [m]", "    or more.", "    Others as for `Model`."]
    assert lines[9:] == ["Raises", "------", "InputError"]
    prose = ["Parameters", "----------", "As for `Model`."]
    as_restructured_text(None, "class", "x", None, None, prose)
    assert prose == ["Parameters: As for `Model`."]
