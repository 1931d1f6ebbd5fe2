"""Models without some of their heads: cut from a loaded one, saved as a folder, read again.

The folder holds `attnprobe_cut.json` (which heads stay), `attnprobe_cut.safetensors` (the smaller
weights), the model's own `config.json` and its tokenizer. transformers alone cannot read it: its
modules have the same number of heads in every layer.
"""

import json
import shutil
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from transformers import PretrainedConfig, PreTrainedModel

from attnprobe import capture, cutting
from attnprobe.errors import BadInput, ExportFailed, UnsupportedModel
from attnprobe.families import Family
from attnprobe.loaded import LoadedModel

NOTE = "attnprobe_cut.json"
WEIGHTS = "attnprobe_cut.safetensors"
FORMAT = 1


def cut(loaded: LoadedModel, heads: Iterable[tuple[int, int]]) -> LoadedModel:
    """A new model without these (layer, head), computing what the old one computes with them off.

    The old model is left as it is. Raises `BadInput` for a head that does not exist.
    """
    gone = frozenset(heads) | loaded.removed
    for layer, head in sorted(gone):
        if not (0 <= layer < loaded.n_layers and 0 <= head < loaded.n_heads):
            raise BadInput(
                f"head {layer}.{head} does not exist: {loaded.name} has layers 0 to "
                f"{loaded.n_layers - 1} with heads 0 to {loaded.n_heads - 1}"
            )
    model = _bare(loaded)
    model.load_state_dict(loaded.weights())
    kept = [
        [h for h in range(loaded.n_heads) if (i, h) not in gone] for i in range(loaded.n_layers)
    ]
    return replace(
        loaded,
        name=f"{loaded.name.split(' without ')[0]} without {len(gone)} heads",
        model=_finished(model, loaded.family, kept),
        notes=(*loaded.notes, note(len(gone), loaded.n_layers * loaded.n_heads)),
    )


def note(gone: int, heads: int) -> str:
    """The sentence for the card of a cut model."""
    return f"{gone} of {heads} heads are cut out; attnprobe alone reads this form."


def _bare(loaded: LoadedModel) -> PreTrainedModel:
    model = type(loaded.model)(deepcopy(loaded.config))
    return model.to(device=loaded.device, dtype=loaded.dtype)


def _finished(model: PreTrainedModel, family: Family, kept: cutting.Kept) -> PreTrainedModel:
    cutting.cut_layers(model, family, kept)
    capture.wrap_layers(family.layer_list(model), family)
    return model.eval().requires_grad_(False)


def save(loaded: LoadedModel, folder: str | Path) -> Path:
    """Writes a cut model as a new folder that `load` takes; all of it or nothing appears.

    Raises `BadInput` when the model has all its heads or the folder is there already, and
    `ExportFailed` when it cannot be written.
    """
    modules = [module for _, module in cutting.cut_modules(loaded.model)]
    if not modules:
        raise BadInput(f"{loaded.name} has all its heads; cut some before saving")
    try:
        return _saved(loaded, [list(module.kept) for module in modules], Path(folder).expanduser())
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ExportFailed(
            f"{folder} could not be written ({error}); choose a folder that you may write to"
        ) from error


def _saved(loaded: LoadedModel, kept: list[list[int]], folder: Path) -> Path:
    if folder.exists():
        raise BadInput(f"{folder} exists already; choose a new folder")
    if not folder.parent.is_dir():
        raise BadInput(f"{folder.parent} is no folder; make it first or choose another place")
    staged = Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _write(loaded, kept, staged)
        staged.chmod(0o755)
        staged.rename(folder)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return folder


def _write(loaded: LoadedModel, kept: list[list[int]], folder: Path) -> None:
    loaded.reader.tokenizer.save_pretrained(folder)
    shutil.copyfile(loaded.folder / "config.json", folder / "config.json")
    save_model(loaded.model, str(folder / WEIGHTS))
    content = {
        "format": FORMAT,
        "kept": kept,
        "cut_from": loaded.name.split(" without ")[0],
        "revision": loaded.revision,
        "licence": loaded.licence,
        "note": "Heads are cut out layer by layer. attnprobe reads this; transformers cannot.",
    }
    (folder / NOTE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def zipped(loaded: LoadedModel) -> bytes:
    """The folder that `save` writes, as a zip archive."""
    with TemporaryDirectory() as place:
        folder = save(loaded, Path(place) / "cut_model")
        buffer = BytesIO()
        with ZipFile(buffer, "w", ZIP_STORED) as archive:
            for path in sorted(folder.iterdir()):
                archive.write(path, f"{folder.name}/{path.name}")
    return buffer.getvalue()


def is_cut(folder: Path) -> bool:
    """Whether this is a folder that `save` wrote."""
    return (folder / NOTE).is_file()


def read(
    name: str,
    folder: Path,
    family: Family,
    make: Callable[[PretrainedConfig], PreTrainedModel],
    config: PretrainedConfig,
    dtype: torch.dtype,
) -> tuple[PreTrainedModel, tuple[str, ...]]:
    """The model of a folder that `save` wrote, in `dtype`, and its note for the card."""
    n_layers, n_heads, _ = family.sizes(config)
    kept = _kept(name, folder, n_layers, n_heads)
    model = make(deepcopy(config)).to(dtype)
    cutting.cut_layers(model, family, kept)
    try:
        load_model(model, str(folder / WEIGHTS), strict=True)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UnsupportedModel(
            f"the weights of {name} cannot be read or do not belong to its {NOTE}; save it again"
        ) from error
    gone = n_layers * n_heads - sum(map(len, kept))
    return model.eval().requires_grad_(False), (note(gone, n_layers * n_heads),)


def _kept(name: str, folder: Path, n_layers: int, n_heads: int) -> list[list[int]]:
    try:
        content: Any = json.loads((folder / NOTE).read_text(encoding="utf-8"))
        kept = content["kept"]
        right = content["format"] == FORMAT and len(kept) == n_layers
        right = right and all(_ascending(heads, n_heads) for heads in kept)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnsupportedModel(f"the {NOTE} of {name} cannot be read; save it again") from error
    if not right:
        raise UnsupportedModel(
            f"the {NOTE} of {name} does not name kept heads for {n_layers} layers of {n_heads}; "
            "save it again"
        )
    return kept


def _ascending(heads: object, n_heads: int) -> bool:
    return (
        isinstance(heads, list)
        and all(type(head) is int and 0 <= head < n_heads for head in heads)
        and all(a < b for a, b in pairwise(heads))
    )
