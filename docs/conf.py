"""How Sphinx builds this documentation: `sphinx-build -W docs OUTPUT`; it needs no network."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes

import marl_sb3
from marl_sb3.cli import documented

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


def add_fields(_app: Any, what: str, _name: str, obj: Any, _options: Any, lines: list[str]) -> None:
    """Add the words that stand beside the fields of a class to its docstring, in the form that napoleon reads."""
    if what == "class":
        entries = [f"    {name}: {words}" for name, words in documented(obj).items() if not name.startswith("_")]
        lines += ["Attributes:", *entries, ""] if entries else []


def prepare_for_narrow_windows(_app: Any, doctree: Any, _page: str) -> None:
    """Put the heading of its column into each cell, for narrow windows where a row is a paragraph; see tables.css.

    Options such as --algo get a class, by which they are not broken after their hyphens, and cells of a number and its
    unit have another one.
    """
    for literal in doctree.findall(nodes.literal):
        if any(word.startswith("--") for word in literal.astext().split()):
            literal["classes"].append("option")
    for table in doctree.findall(nodes.table):
        heads = [entry.astext() for row in table.findall(nodes.thead) for entry in row.findall(nodes.entry)]
        table["classes"] += ["pairs"] if len(heads) == 2 else []
        for row in (row for body in table.findall(nodes.tbody) for row in body.findall(nodes.row)):
            for head, cell in list(zip(heads, row.children, strict=False))[1:]:
                cell["classes"] += ["number"] if re.fullmatch(r"[-\d.,]+ (x|%)", cell.astext()) else []
                if len(heads) > 2 and head not in ("", "what") and cell.astext():
                    cell[0].insert(0, nodes.inline("", f"{head}: ", classes=["label"]))


def keep_options_whole(_app: Any, _page: str, _template: str, context: dict[str, Any], _doctree: Any) -> None:
    """Mark options in commands, too, which are continued on the next line where a window is narrow; see tables.css."""

    def marked(block: re.Match[str]) -> str:
        return re.sub(r"(?<![\w-])--[a-z][\w-]*", r'<span class="option">\g<0></span>', block[0])

    body = context.get("body", "")
    context["body"] = re.sub(r'<div class="highlight-bash.*?</pre>', marked, body, flags=re.DOTALL)


def setup(app: Any) -> None:
    """Be called by Sphinx."""
    app.connect("html-page-context", keep_options_whole)
    app.connect("doctree-resolved", prepare_for_narrow_windows)
    app.connect("autodoc-process-docstring", add_fields, priority=400)  # before napoleon's
