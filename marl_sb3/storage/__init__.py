"""Files and checkpoints, written atomically and read with checks: nothing in a file is executed or imported.

`state`, `rng`, `process_rng` and `space_data` turn objects into plain data and back. `atomic` replaces files and
folders; `untrusted` and `tensor_file` read JSON and tensors. `parts`, `policy_files` and `versions` define the content
of a checkpoint; `checkpoint_format` reads and writes one, `checkpoint_folder` manages those of a run.
"""
