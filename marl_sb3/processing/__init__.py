"""Processing of a policy's observations, rewards and actions, as its settings say; `processing.ORDER` is the order.

`Processing` is that of one policy, with its running statistics. `process_rows` lets it work on the rows of a policy in
some envs; `predict` brings the memory of a row itself.
"""

from __future__ import annotations

from marl_sb3.processing.interface import Memory, Policy
from marl_sb3.processing.processing import ORDER, Processing
from marl_sb3.processing.rows import RowProcessing, process_rows

__all__ = ["ORDER", "Memory", "Policy", "Processing", "RowProcessing", "process_rows"]
