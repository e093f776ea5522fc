"""Policies play complete episodes: those of one run or of several, against each other, code that is none, or persons.

playing      evaluations: complete episodes, with a training in progress left as it is
played       what came of them: returns and metrics, who has won, and the score
pairing      who acts in the same envs: policies, and an opponent beside them
opponents    who plays beside the policies
game         one env, one step at a time, in which persons may act
session      a game at a pace: commands come from a stage, moments go to it
viewed_env   what an env looks like meanwhile
board        what a click on its picture means
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
