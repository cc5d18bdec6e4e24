"""jupytext and nbformat, without the second and a half in which a library below them compiles grammars of URLs.

nbformat imports jsonschema, and that, where it finds rfc3987_syntax (JupyterLab brings it), what checks strings said to
be URLs. Nothing of a notebook is. Every kernel and every process that grades would pay for it.
"""

import sys

_UNUSED = "rfc3987_syntax"
_is_new = _UNUSED not in sys.modules
if _is_new:
    sys.modules[_UNUSED] = None  # type: ignore[assignment]  # so it cannot be found
try:
    import jupytext
    import nbformat
    from nbformat import NotebookNode
finally:
    if _is_new:
        del sys.modules[_UNUSED]

__all__ = ["NotebookNode", "jupytext", "nbformat"]
