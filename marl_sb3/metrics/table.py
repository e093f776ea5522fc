"""Rows as a pandas DataFrame, if pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> Any:
    """Return the rows as a `pandas.DataFrame`; without pandas, as a list of dictionaries with the same columns.

    Args:
        columns: the order of the columns; None: the order of first appearance.
    """
    names = list(columns or dict.fromkeys(name for row in rows for name in row))
    complete = [{name: row.get(name) for name in names} for row in rows]
    try:
        import pandas
    except ImportError:
        return complete
    return pandas.DataFrame(complete, columns=names)
