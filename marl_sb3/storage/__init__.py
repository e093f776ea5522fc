"""What is kept on disk, written whole and read with checks: nothing in a file is run, imported or believed.

`state` and `rng` turn objects into plain data and back; `tensor_file` and `untrusted` read and write files;
`checkpoint_format` is one checkpoint, `checkpoint_folder` are those of a run.
"""
