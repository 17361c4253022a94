"""How the documentation is built: `make docs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import elastic_tf  # noqa: E402 (found where the line above says)

project = "elastic_tf"
version = release = elastic_tf.__version__
copyright = "the authors of elastic_tf, Apache 2.0"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "formulas",
    "pictures",
    "rooms",
]

# Pages are Markdown, with formulas between dollars; headings can be linked to.
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

smartquotes = False  # would make one dash of the two before an option

# Docstrings are of Google's kind, and set names between single backticks.
default_role = "literal"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
add_module_names = False

# Types such as `bytes` and `shape` are also names of attributes here.
# The picture of the rooms is drawn where mermaid is known; here it is text.
suppress_warnings = ["ref.python", "misc.highlighting_failure"]

# Everything is in the output: no fonts, scripts or styles from elsewhere.
html_theme = "furo"
html_title = f"elastic_tf {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["style"]
html_css_files = ["pages.css"]
html_math_renderer = "mathml"
pygments_style = "friendly"
pygments_dark_style = "monokai"
