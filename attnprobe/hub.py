"""Checkpoints of the Hugging Face Hub: the local cache first, then a download that can be stopped.

Only configs, tokenizers and safetensors are fetched. `HF_HUB_OFFLINE` and the other variables of
huggingface_hub are honoured; a download that was stopped goes on from the byte where it ended.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from os import SEEK_END
from pathlib import Path

from huggingface_hub import (
    HfApi,
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    scan_cache_dir,
    snapshot_download,
)
from huggingface_hub.errors import (
    CacheNotFound,
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import WeakFileLock, build_hf_headers
from tqdm.auto import tqdm

from attnprobe.errors import TooLarge, UnsupportedModel
from attnprobe.families import FAMILIES

Progress = Callable[[int, int], None]
"""Told (bytes done, bytes in all) during a download; may raise to stop it."""

_WANTED = ("*.json", "*.safetensors", "*.txt", "*.model", "README.md", "LICENSE*")


def snapshot(name: str, revision: str | None = None, progress: Progress | None = None) -> Path:
    """The folder of a Hub model in the cache, downloaded if it is not there.

    Raises `UnsupportedModel` when the id is no id, unknown, gated or out of reach, and `TooLarge`
    when the disk has no room for it.
    """
    try:
        return _cached(name, revision) or _download(name, revision, progress)
    except HFValidationError as error:
        raise UnsupportedModel(
            f"{name[:100]!r} is neither a folder here nor a Hub id such as 'gpt2' or 'owner/name'"
        ) from error
    except GatedRepoError as error:
        raise UnsupportedModel(
            f"{name} is gated on the Hub: accept its terms there and log in with `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise UnsupportedModel(f"{name} has no revision {revision!r} on the Hub") from error
    except RepositoryNotFoundError as error:
        raise UnsupportedModel(
            f"{name} is not on the Hub, or it is private; check the spelling"
        ) from error
    except (EntryNotFoundError, OSError, HTTPError, RuntimeError) as error:
        raise UnsupportedModel(
            f"{name} is neither a folder here nor in the local Hugging Face cache, and the Hub "
            "cannot be reached; try bundled:bert, a local folder, or go online"
        ) from error


def needs_download(name: str, revision: str | None = None) -> bool:
    """Whether `snapshot` would have to ask the Hub: not in the cache, and going online is allowed.

    False for what is no id at all: `snapshot` says so without asking.
    """
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        return _cached(name, revision) is None
    except HFValidationError:
        return False


def cached_models() -> tuple[str, ...]:
    """Ids of models in the local cache whose family attnprobe supports, by name."""
    try:
        repos = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except (CacheNotFound, OSError):
        return ()
    return tuple(sorted(repo.repo_id for repo in repos if _is_supported(repo)))


def _is_supported(repo) -> bool:
    if repo.repo_type != "model":
        return False
    files = [file for revision in repo.revisions for file in revision.files]
    if not any(file.file_name.endswith(".safetensors") for file in files):
        return False
    configs = [file.file_path for file in files if file.file_name == "config.json"]
    return any(_model_type(path) in FAMILIES for path in configs)


def _model_type(config: Path) -> str | None:
    try:
        named = json.loads(config.read_text(encoding="utf-8")).get("model_type")
        return named if isinstance(named, str) else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def _cached(name: str, revision: str | None) -> Path | None:
    try:
        folder = snapshot_download(
            name, revision=revision, local_files_only=True, allow_patterns=list(_WANTED)
        )
    except LocalEntryNotFoundError:
        return None
    complete = (Path(folder) / "config.json").is_file() and any(Path(folder).glob("*.safetensors"))
    return Path(folder) if complete else None


def _download(name: str, revision: str | None, progress: Progress | None) -> Path:
    info = HfApi().model_info(name, revision=revision, files_metadata=True)
    sizes = _wanted(info)
    total = sum(sizes.values())
    _require_room(name, total)
    folder, done = None, 0
    for file, size in sizes.items():
        bar = _reporter(progress, done, total) if progress else None
        if file.endswith(".safetensors"):
            _resume(name, file, revision, bar)
        path = hf_hub_download(name, file, revision=revision, tqdm_class=bar)
        folder, done = Path(path).parent, done + size
    if folder is None:
        raise UnsupportedModel(f"{name} holds no config, tokenizer or safetensors on the Hub")
    return folder


def _resume(name: str, file: str, revision: str | None, bar: type[tqdm] | None) -> None:
    """Brings weights into the cache, from where an earlier download of them ended.

    `hf_hub_download` begins a file anew after a stop; it takes what it finds finished. Files whose
    tag on the Hub is no SHA-256 are small and left to it.
    """
    url, headers = hf_hub_url(name, file, revision=revision), build_hf_headers()
    found = get_hf_file_metadata(url, headers=headers)
    folder = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")
    digest = found.etag or ""
    blob = folder / "blobs" / digest
    if len(digest) != _SHA256_DIGITS or blob.exists():
        return
    blob.parent.mkdir(parents=True, exist_ok=True)
    part = blob.with_name(f"{digest}.incomplete")
    with WeakFileLock(f"{part}.lock"):
        if blob.exists():  # another process brought it while this one waited
            return
        with part.open("ab") as begun:
            if found.size is not None and begun.tell() > found.size:
                begun.truncate(0)
            http_get(
                url,
                begun,
                resume_size=begun.seek(0, SEEK_END),
                headers=headers,
                expected_size=found.size,
                tqdm_class=bar,
            )
        with part.open("rb") as whole:
            intact = hashlib.file_digest(whole, "sha256").hexdigest() == digest
        if not intact:
            part.unlink()
            raise UnsupportedModel(f"{file} of {name} came damaged from the Hub; download it again")
        part.replace(blob)


_SHA256_DIGITS = 64


def _wanted(info: ModelInfo) -> dict[str, int]:
    """Files at the top of the repository that are needed, small ones first, with their bytes."""
    files = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    needed = {f: size for f, size in files.items() if any(fnmatch(f, w) for w in _WANTED)}
    return dict(sorted(((f, s) for f, s in needed.items() if "/" not in f), key=lambda x: x[1]))


def _require_room(name: str, total: int) -> None:
    cache = Path(constants.HF_HUB_CACHE)
    cache.mkdir(parents=True, exist_ok=True)
    room = shutil.disk_usage(cache).free
    if total > room:
        raise TooLarge(
            f"{name} is {total / 2**30:,.1f} GiB to download and the cache's disk has "
            f"{room / 2**30:,.1f} GiB free; free some space or choose a smaller model"
        )


def _reporter(progress: Progress, before: int, total: int) -> type[tqdm]:
    """A silent tqdm that tells `progress` of every chunk."""

    class Reporter(tqdm):
        def __init__(self, *args, **options) -> None:
            options.pop("name", None)
            self.bytes_done = options.get("initial") or 0
            super().__init__(*args, **options | {"disable": True})

        def update(self, n: float | int | None = 1) -> None:
            self.bytes_done += int(n or 0)
            progress(min(before + self.bytes_done, total), total)

    return Reporter
