"""Statistics of every row of every head during a forward pass, against other ways to get them.

sdpa: the model as it is, with transformers' SDPA attention, without any statistics.
capture: the same forward pass with every row statistic of every head; nothing else is kept.
trace: what a page computes, which also keeps queries, keys, values and contexts of every layer.
eager: transformers' eager attention with `output_attentions`, and the same statistics in torch of
the weights it returns (without mean and deviation of the logits, which weights do not tell).
transformer_lens: scores and patterns by `TransformerBridge.run_with_cache`, and the same statistics
of both.
bertviz: `output_attentions` and the data that its head view sends to the browser, no statistics.

Random ids of one text. Every contender runs the whole model with its own head, in a process of its
own. The bundled models have 512 positions: with a longer text asked for, all their contenders run
the model with its position vectors repeated, which costs what as many learned ones would, and the
result says so (`bert_positions_repeated_T1024`).
"""

import importlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

import attnprobe as ap
from attnprobe import capture
from attnprobe.capture import AttentionCall
from attnprobe.loaded import LoadedModel
from attnprobe.softmax_stats import RowStatistics, attention_rows, spectral_norm
from attnprobe.text import Tokens
from benchmarks import geometries
from benchmarks.geometries import Geometry
from benchmarks.pruning import small_geometry
from benchmarks.turns import Absent, Run, Tally, started, tallies

HELP = "all row statistics of all heads in a forward pass: time and memory against other ways"
PREFIXES = {geometries.SMALL: "", geometries.BERT: "bert_", geometries.GPT2: "gpt2_"}
ROUNDS = {128: 11, 512: 9}
FEWEST = 7
LONGEST = {"bertviz": 128}
"""BertViz writes every weight as text: 1.5 GB of it at 1,024 tokens."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", choices=PREFIXES, default=list(PREFIXES))
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512, 1024])
    parser.add_argument("--rounds", type=int, help="turns of each contender at every length")
    parser.add_argument("--contenders", nargs="+", choices=BUILDS, default=list(BUILDS))


def measure(args: Namespace) -> dict[str, object]:
    found: dict[str, object] = {}
    for name in args.models:
        geometry = Geometry(name, longest=max(args.tokens))
        every = dict.fromkeys(["sdpa", *args.contenders])
        builds = {who: (BUILDS[who], geometry) for who in every}
        with ExitStack() as stack:
            there, absent = started(stack, builds)
            found |= {f"{PREFIXES[name]}{who}_absent": why for who, why in absent.items()}
            for tokens in sorted(args.tokens):
                able = {w: c for w, c in there.items() if tokens <= LONGEST.get(w, tokens)}
                rounds = args.rounds or ROUNDS.get(tokens, FEWEST)
                found |= rows(tallies(able, tokens, rounds), PREFIXES[name], tokens)
                if tokens > geometries.positions(name):
                    found[f"{PREFIXES[name]}positions_repeated_T{tokens}"] = True
    return found


def rows(found: dict[str, Tally], prefix: str, tokens: int) -> dict[str, object]:
    """Medians, ratios of turns of the same round, and memory, as flat keys."""
    sdpa, ours = found["sdpa"], found.get("capture")
    flat: dict[str, object] = {}
    for who, tally in found.items():
        flat[f"{prefix}{who}_s_T{tokens}"] = tally.seconds
        flat[f"{prefix}{EXTRA.get(who, f'{who}_extra_mib')}_T{tokens}"] = tally.extra_mib
        if who in OVER_SDPA:
            flat[f"{prefix}{OVER_SDPA[who]}ratio_to_sdpa_T{tokens}"] = tally.over(sdpa)
            cpu = tally.over(sdpa, "processor")
            flat[f"{prefix}{OVER_SDPA[who]}cpu_ratio_to_sdpa_T{tokens}"] = cpu
        elif who != "sdpa" and ours:
            flat[f"{prefix}speedup_over_{who}_T{tokens}"] = tally.over(ours)
    flat[f"{prefix}rounds_T{tokens}"] = len(sdpa.turns)
    return flat


EXTRA = {"capture": "extra_mib"}
OVER_SDPA = {"capture": "", "trace": "trace_"}


def _loaded(geometry: Geometry) -> LoadedModel:
    """As a page has it, but for the positions that it lacks."""
    small = geometry.name == geometries.SMALL
    loaded = small_geometry() if small else ap.load(geometry.name, device="cpu")
    if geometry.longest <= loaded.max_tokens:
        return loaded
    model = geometry.model(capture.IMPLEMENTATION)
    return replace(loaded, model=model, max_tokens=geometry.longest)


def sdpa(geometry: Geometry) -> Run:
    return geometries.forward(geometry.model("sdpa"))


def with_statistics(geometry: Geometry) -> Run:
    return watched(geometry.model(capture.IMPLEMENTATION))


def watched(model: PreTrainedModel) -> Run:
    """A forward pass that leaves every layer's row statistics."""
    run = geometries.forward(model)

    def captured(tokens: int) -> list[RowStatistics]:
        found: list[RowStatistics] = []
        with capture.watching(lambda call: _context(call, found)):
            run(tokens)
        return found

    return captured


def _context(call: AttentionCall, found: list[RowStatistics]) -> Tensor:
    context, rows = attention_rows(
        call.query, call.key, call.value, scale=call.scale, valid=call.valid, causal=call.causal
    )
    found.append(rows)
    return context


def whole_trace(geometry: Geometry) -> Run:
    loaded = _loaded(geometry)
    return lambda tokens: ap.head_table(ap.trace(loaded, _tokens(tokens)))


def _tokens(tokens: int) -> Tokens:
    ids = tuple(geometries.random_ids(tokens)[0].tolist())
    nothing = ("",) * tokens
    return Tokens(
        "random ids", ids, nothing, nothing, (False,) * tokens, tuple(range(tokens)), tokens
    )


def eager(geometry: Geometry) -> Run:
    run = geometries.forward(geometry.model("eager"), output_attentions=True)
    return lambda tokens: [textbook(weights) for weights in run(tokens).attentions]


def textbook(weights: Tensor) -> dict[str, Tensor]:
    """The statistics of weights [batch head query key] as formulae say them, whole at once.

    The spectral norm is this project's: no library has one for many rows.
    """
    squares = weights.square().sum(-1)
    peak, place = weights.max(-1)
    return {
        "entropy": torch.special.entr(weights).sum(-1),
        "peak": peak,
        "peak_key": place,
        "jacobian_frobenius": (squares - 2 * weights.pow(3).sum(-1) + squares**2).sqrt(),
        "jacobian_max": peak * (1 - peak),
        "jacobian_trace": 1 - squares,
        "jacobian_spectral": spectral_norm(weights),
    }


def transformer_lens(geometry: Geometry) -> Run:
    if geometry.name == geometries.BERT:
        raise Absent("TransformerLens takes no BERT encoder without a head")
    bridge = _library("transformer_lens.model_bridge").TransformerBridge.boot_transformers(
        "gpt2", hf_model=geometry.model("eager"), tokenizer=_loaded(geometry).reader.tokenizer
    )
    wanted = ("hook_attn_scores", "hook_pattern")

    def run(tokens: int) -> list:
        _, cache = bridge.run_with_cache(
            geometries.random_ids(tokens), names_filter=lambda hook: hook.endswith(wanted)
        )
        return [
            textbook(found) if hook.endswith("pattern") else _of_scores(found)
            for hook, found in cache.items()
        ]

    return run


def _of_scores(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the keys that a row sees; the others are hugely negative."""
    seen = scores > torch.finfo(scores.dtype).min / 2
    count = seen.sum(-1)
    mean = torch.where(seen, scores, 0.0).sum(-1) / count
    apart = torch.where(seen, scores - mean[..., None], 0.0)
    return mean, (apart.square().sum(-1) / count).sqrt()


def bertviz(geometry: Geometry) -> Run:
    head_view = _library("bertviz").head_view
    run = geometries.forward(geometry.model("eager"), output_attentions=True)

    def data(tokens: int) -> object:
        return head_view(run(tokens).attentions, ["token"] * tokens, html_action="return")

    return data


def _library(name: str):
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Absent(f"{name.partition('.')[0]} is not installed") from None


BUILDS: dict[str, Callable[[Geometry], Run]] = {
    "sdpa": sdpa,
    "capture": with_statistics,
    "trace": whole_trace,
    "eager": eager,
    "transformer_lens": transformer_lens,
    "bertviz": bertviz,
}
