"""Perturbation tests of one head, of a layer or of all layers on a set of texts."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence

import pandas as pd

from attnprobe import readout
from attnprobe.analyses.perturbation import adversary, erasure, experiments, permutation, reply
from attnprobe.analyses.perturbation.edits import ALL_ROWS, READOUT_ROW, Scope
from attnprobe.analyses.perturbation.experiments import Cost, Part, Unit
from attnprobe.analyses.perturbation.runs import CleanRun, require_row
from attnprobe.commands import data, inputs
from attnprobe.data import LabelledText, TextSet
from attnprobe.errors import Stopped
from attnprobe.loaded import LoadedModel
from attnprobe.models import load
from attnprobe.readout import ReadOut

NAME = "perturb"
HELP = "permuted, replaced, adversarial and erased attention, and its agreement with gradients"

STOPPED = "stopped"
_ROWS = {"all": ALL_ROWS, "read-out": READOUT_ROW}


def add_arguments(parser: ArgumentParser) -> None:
    inputs.add_model(parser)
    data.add_data(parser)
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--text", help="one text, instead of --data")
    given.add_argument("--file", help="a UTF-8 file with one text, or - for standard input")
    parser.add_argument(
        "--experiment",
        action="append",
        choices=list(_EXPERIMENTS),
        help="repeat it for several (default: permutation)",
    )
    parser.add_argument("--layer", type=int, help="default: all layers")
    parser.add_argument("--head", type=int, help="default: all heads of the layer")
    parser.add_argument("--every-head", action="store_true", help="permute each head by itself")
    parser.add_argument("--rows", choices=list(_ROWS), default="all", help="which query rows")
    parser.add_argument("--permutations", type=int, default=100)
    parser.add_argument(
        "--keep-special", action="store_true", help="special tokens keep their weights in place"
    )
    parser.add_argument(
        "--others",
        type=int,
        default=12,
        help="random other heads, or layers, as the null; all layers at once have none",
    )
    settings = adversary.Settings()
    parser.add_argument("--epsilon", type=float, default=settings.epsilon)
    parser.add_argument("--restarts", type=int, default=settings.restarts)
    parser.add_argument("--steps", type=int, default=settings.steps)
    parser.add_argument("--random-orders", type=int, default=20, help="for erasure")
    parser.add_argument(
        "--checkpoint",
        action="append",
        default=[],
        metavar="MODEL",
        help="another training of the same model, for the variation over seeds",
    )


def run(args: Namespace) -> dict[str, pd.DataFrame]:
    """The frames of every experiment asked for, by name.

    Interrupted, raises `Stopped` with the frames so far and one that says how far it came.
    """
    loaded = inputs.model_of(args)
    texts = _texts(args)
    reader = _reader(args, loaded, texts)
    scope = Scope(args.layer, args.head, _ROWS[args.rows]).checked(loaded)
    require_row(reader, scope)
    runs = experiments.clean_runs(reader, texts.texts)
    frames = {}
    for name in dict.fromkeys(args.experiment or ["permutation"]):
        frames |= _EXPERIMENTS[name](args, loaded, runs, scope)
        if STOPPED in frames:
            done, total = frames[STOPPED].iloc[0]
            frames[STOPPED].insert(0, "experiment", name)
            raise Stopped(
                f"{name} was stopped after {done:g} of {total:g} parts; what was found until then "
                "is given",
                frames,
            )
    if args.checkpoint:
        frames["checkpoints"] = _checkpoints(args, loaded, texts)
    return frames


def _texts(args: Namespace) -> TextSet:
    if args.text is not None:
        return TextSet("the text", (LabelledText(args.text),), _sentences(args))
    if args.file is not None:
        words = inputs.read_text(args.file)
        return TextSet(args.file, (LabelledText(words),), _sentences(args))
    return data.texts_of(args)


def _sentences(args: Namespace) -> Mapping[str, str]:
    """The label sentences given, or those of the bundled topics."""
    return data.texts_of(args).sentences


def _reader(args: Namespace, loaded: LoadedModel, texts: TextSet) -> ReadOut:
    """As for pruning, except that a causal model is read after the text and not at every token."""
    if args.readout == "auto" and loaded.head_kind == "causal LM":
        return readout.next_token(loaded, where="last")
    return data.readout_of(args, loaded, texts)


def _done(units: Sequence[Unit], cost: Cost, runs: Sequence[CleanRun]) -> dict[str, pd.DataFrame]:
    """Runs the units; says on standard error what they will cost and how far they are.

    Interrupted, gives what was found until then, and in the frame `STOPPED` how much that is.
    """
    print(cost.statement(experiments.pace(runs[0])), file=sys.stderr)
    latest: list[tuple[int | float, int, tuple[Part, ...]]] = []

    def report(done: int | float, total: int, parts: tuple[Part, ...]) -> None:
        latest[:] = [(done, total, parts)]
        if sys.stderr.isatty():
            print(f"\r{done:,} of {total:,} ", end="\n" * (done == total), file=sys.stderr)

    try:
        return experiments.joined(experiments.in_turn(units, report))
    except KeyboardInterrupt:
        if not latest:
            raise Stopped("stopped before anything was found") from None
    done, total, parts = latest[0]
    return experiments.joined(parts) | {STOPPED: pd.DataFrame([{"done": done, "total": total}])}


def _permutation(
    args: Namespace, loaded: LoadedModel, runs: Sequence[CleanRun], scope: Scope
) -> dict[str, pd.DataFrame]:
    draws = permutation.Draws(args.permutations, not args.keep_special, args.seed)
    scopes = [scope, *permutation.other_scopes(loaded, scope, args.others, args.seed)]
    if args.every_head:
        scopes = [
            Scope(layer, head, scope.rows)
            for layer in range(loaded.n_layers)
            for head in range(loaded.n_heads)
        ]
    cost = experiments.permutation_cost(_lengths(runs), loaded.n_layers, scopes, draws)
    frames = _done(experiments.permutation_units(runs, scopes, draws), cost, runs)
    summary = permutation.per_text(frames["draws"])
    ratios = permutation.ratios(summary, frames["replaced"])
    return {"permutation": summary, "ratios": ratios} | frames


def _adversary(
    args: Namespace, loaded: LoadedModel, runs: Sequence[CleanRun], scope: Scope
) -> dict[str, pd.DataFrame]:
    settings = adversary.Settings(
        epsilon=args.epsilon, restarts=args.restarts, steps=args.steps, seed=args.seed
    )
    cost = experiments.adversary_cost(_lengths(runs), loaded.n_layers, scope, settings)
    frames = _done(experiments.adversary_units(runs, scope, settings), cost, runs)
    frames["adversaries"] = frames["adversaries"].assign(note=adversary.LABEL)
    return frames


def _agreement(
    args: Namespace, loaded: LoadedModel, runs: Sequence[CleanRun], scope: Scope
) -> dict[str, pd.DataFrame]:
    cost = experiments.agreement_cost(_lengths(runs), loaded.n_layers)
    return _done(experiments.agreement_units(runs, scope), cost, runs)


def _erasure(
    args: Namespace, loaded: LoadedModel, runs: Sequence[CleanRun], scope: Scope
) -> dict[str, pd.DataFrame]:
    erasing = erasure.Erasing(args.random_orders, seed=args.seed)
    cost = experiments.erasure_cost(_lengths(runs), loaded.n_layers, scope, erasing)
    frames = _done(experiments.erasure_units(runs, scope, erasing), cost, runs)
    points = erasure.flip_points(frames["erasure"]) if len(frames["erasure"]) else pd.DataFrame()
    return {"flips": points} | frames


def _lengths(runs: Sequence[CleanRun]) -> list[int]:
    return [run.length for run in runs]


def _checkpoints(args: Namespace, loaded: LoadedModel, texts: TextSet) -> pd.DataFrame:
    """Variation between checkpoints, text by text; one more model in memory at a time."""
    taken = [_snapshots(args, loaded, texts)]
    for name in args.checkpoint:
        other = load(name, device=args.device, dtype=args.dtype)
        reply.same_kind([loaded, other])
        taken.append(_snapshots(args, other, texts))
    frames = [
        reply.seed_variation(shots).assign(text=number)
        for number, shots in enumerate(zip(*taken, strict=True))
    ]
    return pd.concat(frames, ignore_index=True)


def _snapshots(args: Namespace, loaded: LoadedModel, texts: TextSet) -> list[reply.Snapshot]:
    reader = _reader(args, loaded, texts)
    return [reply.snapshot(run) for run in experiments.clean_runs(reader, texts.texts)]


_EXPERIMENTS: Mapping[str, Callable[..., dict[str, pd.DataFrame]]] = {
    "permutation": _permutation,
    "adversary": _adversary,
    "agreement": _agreement,
    "erasure": _erasure,
}
