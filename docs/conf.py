"""Sphinx's configuration. `make site` puts the pages together first (txcourse/site), then calls Sphinx."""

import importlib.util
from pathlib import Path

import txlib

project = "Transformers, built by hand"
author = "the authors of txlib"
release = txlib.__version__
language = "en"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
autodoc_inherit_docstrings = False  # torch has its own pages
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types of torch and of Python, which are not of this site
nb_execution_mode = "off"  # outputs are those of the notebooks that are shipped
nb_ipywidgets_js = {}
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 4
smartquotes = False

# MathJax comes with the package sphinx-mathjax-offline, and so from the site itself: one file, which asks for no other.
mathjax = Path(importlib.util.find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
mathjax_path = "tex-svg-full.js"
mathjax3_config = {"options": {"enableMenu": False}}

html_theme = "sphinx_book_theme"
html_context = {"default_mode": "auto"}  # light or dark as the browser is set; left out, the theme complains
html_title = project
html_static_path = ["_static", str(mathjax / mathjax_path)]
html_css_files = ["course.css"]
html_js_files = ["course.js", "search.js"]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # it would fetch each page, which browsers refuse to do from files: see search.js
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_navbar_depth": 1,
    "navigation_depth": 2,  # what the sidebar holds on every page
    "show_toc_level": 2,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


def setup(app):
    from txcourse.site.docstrings import as_rst
    from txcourse.site.excerpts import write_excerpts

    def process(app, what, name, obj, options, lines):
        lines[:] = as_rst(lines)

    app.connect("autodoc-process-docstring", process, priority=100)  # before napoleon
    app.connect("doctree-resolved", write_excerpts)
