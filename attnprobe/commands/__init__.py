"""The commands of `python -m attnprobe`, one file each; `attnprobe.cli` has their table.

A command is a module with `NAME`, `HELP`, `add_arguments(parser)` and `run(args)`, which returns
one frame, or several by name. It prints nothing: `attnprobe.cli` writes the frames.
"""
