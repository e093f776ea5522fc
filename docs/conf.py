"""How Sphinx builds this documentation: `sphinx-build -W docs OUTPUT`; it needs no network."""

from __future__ import annotations

import marl_sb3

project = "marl_sb3"
html_title = f"marl_sb3 {marl_sb3.__version__}"
html_theme = "furo"
html_show_copyright = False  # LICENSE says it
html_static_path = ["static"]
html_css_files = ["tables.css"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]

# What a reader types; not pictures of folders or of what a command prints.
copybutton_selector = "div.highlight-bash pre, div.highlight-python pre, div.highlight-yaml pre"

myst_heading_anchors = 3  # so that [text](page.md#a-heading) works here as it does on a forge

# A docstring's `name` becomes a link where the name is documented, and code elsewhere.
default_role = "py:obj"
smartquotes = False  # --option stays --option
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
napoleon_use_ivar = True
napoleon_numpy_docstring = False
