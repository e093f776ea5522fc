"""Files and checkpoints, written atomically and read with checks: nothing in a file is executed or imported.

`state` reads plain data with checks; by the fields in `parts`, objects return and restore their state. `process_rng`
and `space_data` turn generators and spaces into plain data and back; `checkpoint` is what a store keeps. The store of
folders: `atomic` replaces files and folders, `regular` opens files, `tensor_file` reads and writes tensors,
`checkpoint_format` reads and writes a checkpoint, `checkpoint_folder` manages those of a run.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
