"""Rows for people who analyse them: a pandas DataFrame where pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> Any:
    """A `pandas.DataFrame` of the rows; where pandas is not installed, a list of dictionaries with the same names.

    Args:
        rows: values by column; a row may lack some.
        columns: the order of the columns; None: of first appearance.
    """
    names = list(columns or dict.fromkeys(name for row in rows for name in row))
    complete = [{name: row.get(name) for name in names} for row in rows]
    try:
        import pandas
    except ImportError:
        return complete
    return pandas.DataFrame(complete, columns=names)
