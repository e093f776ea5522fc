"""Policies play complete episodes: those of one run or of several, against each other, code that is none, or persons.

playing      evaluations: episodes and their metrics
opponents    who plays beside the policies
game         one env, one step at a time, in which persons may act
player       a game at a pace: commands come from a stage, moments go to it
viewed_env   what an env looks like meanwhile
board        what a click on its picture means, and who has won
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
