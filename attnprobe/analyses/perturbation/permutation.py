"""Random permutations of a head's weights, and what they do to the output beside an ablation.

Jain & Wallace 2019, section 4.2.1, carried over to many heads and layers: each row's weights are
permuted among its own valid keys, rows independently, and everything above is computed again. A
small effect means little by itself: a head whose ablation does nothing either does not matter for
this text. So the ratio to the ablation is what heads are ranked by, among other heads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnprobe.analyses.perturbation.edits import Rows, Rule, Scope, permuted
from attnprobe.analyses.perturbation.runs import CleanRun, effects
from attnprobe.errors import BadInput
from attnprobe.loaded import LoadedModel

FLOOR = 1e-6
"""TVD below which an effect is rounding: a ratio to it is undefined."""


@dataclass(frozen=True)
class Draws:
    """How many permutations, of which keys. `specials` says whether special tokens' weights are
    moved too; if not, they keep their place and the others change among themselves."""

    number: int = 100
    specials: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.number < 1:
            raise BadInput(f"{self.number} permutations were asked for; at least 1 is needed")

    @property
    def statement(self) -> str:
        """For captions: what was permuted, how often, with which seed."""
        which = "all valid keys" if self.specials else "valid keys that are no special tokens"
        return f"{self.number} permutations of {which}, seed {self.seed}"


def movable_keys(run: CleanRun, draws: Draws) -> Bool[Tensor, "query key"]:
    """Which keys' weights change places in each row."""
    return run.valid if draws.specials else run.valid & run.content


def permutation_tvd(
    run: CleanRun,
    scope: Scope,
    draws: Draws,
    *,
    number: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> pd.DataFrame:
    """One row per permutation: `draw`, `tvd`, `flips` (share of spots whose decision flips).

    `number` is the text's in its set and enters the seed. Undefined (NaN) where no chosen row has
    two keys to exchange.
    """
    movable = movable_keys(run, draws)
    columns = {"draw": np.arange(draws.number)}
    if not bool((run.rows(scope) & (movable.sum(-1) >= 2)).any()):
        return pd.DataFrame(columns | {"tvd": np.nan, "flips": np.nan})
    rule = _permuting(movable, _generator(draws.seed, number, scope))
    found = effects(run, scope, lambda part: rule, draws.number, tick)
    return pd.DataFrame(
        columns | {"tvd": found.tvd.cpu().numpy(), "flips": found.flips.cpu().numpy()}
    )


def _permuting(movable: Tensor, generator: torch.Generator) -> Rule:
    """A rule that draws a new permutation for every variant, head and row, variant by variant, so
    that a seed means the same permutations however they are batched."""

    def rule(rows: Rows) -> Tensor:
        return torch.stack([permuted(one, movable, generator) for one in rows.weights])

    return rule


def _generator(seed: int, number: int, scope: Scope) -> torch.Generator:
    words = [seed, number, *(0 if at is None else at + 1 for at in (scope.layer, scope.head))]
    state = np.random.SeedSequence([abs(word) for word in words]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def row_peak(run: CleanRun, scope: Scope) -> float:
    """The largest weight of a row, averaged over the rows and heads in scope that see at least two
    keys; for one head and the read-out row it is the figure's x axis in the paper."""
    counted = run.rows(scope) & (run.valid.sum(-1) >= 2)
    if not bool(counted.any()):
        return float("nan")
    peaks = [
        run.weights(layer)[scope.heads(layer, run.loaded.n_heads)][:, counted].amax(-1)
        for layer in scope.layers(run.n_layers)
    ]
    return float(torch.cat(peaks).mean())


PEAK_EDGES: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)


def peak_bin(peak: Float[np.ndarray, " row"]) -> list[str]:
    """The four bins of the paper's violins, as labels; undefined peaks have none."""
    edges = np.array(PEAK_EDGES[1:-1])
    names = [f"{a:g}–{b:g}" for a, b in pairwise(PEAK_EDGES)]
    places = np.searchsorted(edges, peak, side="right")
    pairs = zip(peak, places, strict=True)
    return [names[i] if np.isfinite(value) else "undefined" for value, i in pairs]


def violins(draws: pd.DataFrame, *, bins: int = 24) -> pd.DataFrame:
    """How the permutations' TVD is spread in each bin of the peak: the paper's violins as counts.

    Columns: `peak_bin`, `tvd` (left edge), `right`, `share` of the bin's permutations, and their
    number `n`. Undefined TVDs are left out.
    """
    known = draws[draws["tvd"].notna()]
    known = known.assign(peak_bin=peak_bin(known["peak"].to_numpy(dtype=float)))
    top = max(float(known["tvd"].max()) if len(known) else 0.0, FLOOR)
    edges = np.linspace(0, top, bins + 1)
    parts = []
    for name, group in known.groupby("peak_bin"):
        counts, _ = np.histogram(group["tvd"], bins=edges)
        shares = counts / counts.sum()
        part = {"peak_bin": name, "tvd": edges[:-1], "right": edges[1:], "share": shares}
        parts.append(pd.DataFrame(part | {"n": len(group)}))
    columns = ["peak_bin", "tvd", "right", "share", "n"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


_SCOPE = ["layer", "head"]


def per_text(draws: pd.DataFrame) -> pd.DataFrame:
    """Median and quartiles over permutations, one row per text and scope."""
    keys = [*_SCOPE, "text", "peak"]
    grouped = draws.groupby(keys, dropna=False, sort=False)
    quartiles = grouped["tvd"].quantile([0.25, 0.5, 0.75]).unstack()
    quartiles.columns = ["q25", "median", "q75"]
    frame = quartiles.assign(flips=grouped["flips"].mean(), draws=grouped.size()).reset_index()
    return frame.assign(peak_bin=peak_bin(frame["peak"].to_numpy(dtype=float)))


def ratios(summary: pd.DataFrame, replaced: pd.DataFrame) -> pd.DataFrame:
    """Permutation against ablation, one row per scope, ranked among all scopes given.

    `permutation` is the mean over texts of the median TVD, `ablation` and `uniform` the mean TVD of
    the same texts' edits; `ratio` = permutation/ablation (of the means, so that texts on which
    nothing happens do not rule it), undefined where the ablation does nothing. `null_low`,
    `null_median`, `null_high` are the 5 %, 50 % and 95 % points of the other scopes' ratios and
    `null_share` is the share of them that are smaller.
    """
    wide = replaced.pivot_table("tvd", [*_SCOPE, "text"], "edit", dropna=False).reset_index()
    both = summary.merge(wide, on=[*_SCOPE, "text"])
    means = both.groupby(_SCOPE, dropna=False, sort=False).agg(
        permutation=("median", "mean"),
        ablation=("zero", "mean"),
        uniform=("uniform", "mean"),
        texts=("median", "count"),
    )
    means["ratio"] = (means["permutation"] / means["ablation"]).where(means["ablation"] > FLOOR)
    nulls = [_null(means["ratio"].to_numpy(), i) for i in range(len(means))]
    return means.assign(**pd.DataFrame(nulls, index=means.index)).reset_index()


def _null(all_ratios: Float[np.ndarray, " scope"], mine: int) -> dict[str, float]:
    """Where one ratio stands among the others; undefined ones are left out."""
    others = np.delete(all_ratios, mine)
    others = others[np.isfinite(others)]
    names = ("null_low", "null_median", "null_high")
    if not len(others):
        return dict.fromkeys((*names, "null_share"), np.nan) | {"null_scopes": 0}
    points = dict(zip(names, np.quantile(others, [0.05, 0.5, 0.95]), strict=True))
    own = all_ratios[mine]
    share = float((others < own).mean()) if np.isfinite(own) else np.nan
    return points | {"null_share": share, "null_scopes": len(others)}


def other_scopes(loaded: LoadedModel, scope: Scope, number: int, seed: int) -> list[Scope]:
    """So many random scopes of the same kind, without the scope itself: other heads of the model,
    or other layers; none for all layers. Raises `BadInput` for a negative number."""
    if number < 0:
        raise BadInput(f"{number} other heads came for the null; 0 or more are possible")
    if scope.layer is None:
        return []
    heads: Sequence[int | None] = range(loaded.n_heads) if scope.head is not None else [None]
    every = [
        Scope(layer, head, scope.rows)
        for layer in range(loaded.n_layers)
        for head in heads
        if (layer, head) != (scope.layer, scope.head)
    ]
    order = np.random.default_rng(abs(seed)).permutation(len(every))
    return [every[i] for i in sorted(order[:number])]
