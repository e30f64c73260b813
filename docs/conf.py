"""The site: `make docs` builds it with Sphinx, offline, and fails on any warning."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import docstrings
import pages

from torchdismech import __version__

project = "torchdismech"
copyright = "the contributors, MIT licence"
version = release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
nitpicky = False  # types in signatures are torch's and numpy's, whose pages are not at hand offline

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"

default_role = "code"
autodoc_member_order = "bysource"
autodoc_mock_imports = ["gymnasium", "tensordict", "torchrl"]  # of the extra [rl]: the pages are the same without it
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]  # a list, no entries: properties have theirs already
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = "torchdismech"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_sidebars = {
    page: [] for page in ("index", "start", "gallery", "symptoms", "questions", "features")
}  # nothing below them
html_sourcelink_suffix = ""
html_theme_options = {
    "logo": {"text": "torchdismech"},
    "navbar_align": "left",
    "header_links_before_dropdown": 8,
    "show_prev_next": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}


def setup(app) -> None:
    """Write the generated pages before the site is read, and read docstrings as this project writes them."""
    app.connect("builder-inited", lambda app: pages.write(Path(app.srcdir)))
    app.connect("autodoc-process-docstring", docstrings.as_restructured_text, priority=100)  # before napoleon
    app.connect("autodoc-process-signature", docstrings.plain_signature)
