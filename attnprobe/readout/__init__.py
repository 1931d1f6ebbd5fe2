"""Read-outs: the distribution that an experiment watches, its loss and its metric.

A read-out turns texts into `Examples` (what to run and where to look), runs the model whatever
edits, gates or resumed layers are active around the call (`capture.watching`), and gives one
distribution per *spot*. Only the positions that are read go through the model's head.

    readout = next_token(loaded)
    examples = readout.prepare(texts)
    base = readout.log_probabilities(examples)            # [spot class]
    with capture.watching(gate({(3, 2): 0.0})):
        edited = readout.log_probabilities(examples)
    score(edited, examples, base).loss                    # [text]

Resumed with a batch of variants: `examples.repeat(n)` under `watching(start=, hidden=)`. Gradients
flow to whatever the watcher brings in.

`watched` holds examples and read-outs, `kinds` the read-outs there are, `scores` what is made of
their distributions.
"""

from attnprobe.readout.kinds import (
    MASKED_SHARE,
    TEMPERATURE,
    classes,
    default,
    label_sentences,
    masked_token,
    next_token,
    sentences_of,
)
from attnprobe.readout.scores import (
    METRICS,
    Metric,
    Scores,
    divergence,
    metric_name,
    per_text,
    score,
)
from attnprobe.readout.watched import Examples, ReadOut

__all__ = [
    "MASKED_SHARE",
    "METRICS",
    "TEMPERATURE",
    "Examples",
    "Metric",
    "ReadOut",
    "Scores",
    "classes",
    "default",
    "divergence",
    "label_sentences",
    "masked_token",
    "metric_name",
    "next_token",
    "per_text",
    "score",
    "sentences_of",
]
