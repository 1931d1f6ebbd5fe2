"""Train the small English GPT-2 that ships as ``bundled:gpt2``.

Fill a folder with the text as ``bundled_text.py`` says, then, as often as needed::

    PYTHONPATH=. python tools/train_bundled_gpt2.py --sources runs/sources --runs runs/bundled_gpt2

A run goes on from the last checkpoint and stops after ``--minutes``; what a step sees depends on
the seed and the step's number alone. ``tools/ship_bundled_gpt2.py`` measures the result and writes
the folder that ships.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from bundled_text import SOURCES, Document
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trigram import Trigram

from attnprobe.analyses.roles import induction_profile, previous_token, repeated_random_tokens

SEED = 20_260
END_OF_TEXT = "<|endoftext|>"
VOCABULARY, POSITIONS, WIDTH, LAYERS, HEADS = 4096, 512, 160, 4, 5
D_HEAD = WIDTH // HEADS
FREQUENCIES = 48


@dataclass(frozen=True)
class Phase:
    """A stretch of training: its sequences, how many of them repeat random tokens, its targets.

    ``taught`` is the share of the target that is the trigram model's distribution, the rest is the
    token that really comes next. The trigram model has seen the whole training part, so a short
    training learns from it what it would need many more tokens to count.
    """

    steps: int
    batch: int
    length: int
    repeats: int
    shortest_period: int
    longest_period: int
    taught: float


PHASES = (
    Phase(200, 24, 64, 12, 4, 28, 0.0),
    Phase(300, 16, 64, 4, 4, 28, 0.8),
    Phase(1800, 16, 96, 2, 6, 46, 0.7),
    Phase(1900, 16, 128, 1, 6, 60, 0.55),
    Phase(1200, 16, 128, 1, 6, 60, 0.3),
    Phase(550, 16, 128, 1, 6, 60, 0.0),
    Phase(250, 4, 512, 1, 8, 250, 0.0),
)
# AdamW's learning rate at some steps, a straight line between them.
RATES = ((0, 2e-5), (99, 2e-3), (199, 2e-3), (200, 3e-3), (2800, 3e-3), (6200, 3e-5))
# The positions and the head that looks back keep their start until something reads that head.
HELD_STEPS = 300


def main() -> None:
    """Prepare the text, then train until the recipe or the time is over."""
    args = _arguments()
    args.runs.mkdir(parents=True, exist_ok=True)
    train_stream(args.sources, args.runs)
    (args.runs / "rendezvous").unlink(missing_ok=True)
    torch.multiprocessing.spawn(train, (args,), nprocs=args.workers)


def train(rank: int, args: argparse.Namespace) -> None:
    """One worker: its share of every batch, on one thread; the first one writes and reports."""
    torch.set_num_threads(1)
    meeting = f"file://{(args.runs / 'rendezvous').resolve()}"
    dist.init_process_group("gloo", meeting, rank=rank, world_size=args.workers)
    stream = train_stream(args.sources, args.runs)
    teacher = Teacher(stream)
    run = Run.resumed(args.runs) if (args.runs / "state.pt").exists() else Run.fresh()
    deadline = time.monotonic() + 60 * args.minutes
    while run.step < total_steps() and not _any_worker(time.monotonic() > deadline):
        run.advance(stream, teacher)
        if rank == 0 and run.step % 100 == 0:
            run.report(args.runs)
        if rank == 0 and run.step % 200 == 0:
            run.save(args.runs)
    if rank == 0:
        run.save(args.runs)
    dist.destroy_process_group()


def _any_worker(condition: bool) -> bool:
    seen = torch.tensor(float(condition))
    dist.all_reduce(seen)
    return bool(seen)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train the GPT-2 that ships with attnprobe.")
    parser.add_argument("--sources", type=Path, required=True, help="folder with the text")
    parser.add_argument("--runs", type=Path, required=True, help="folder for checkpoints")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after this long")
    parser.add_argument("--workers", type=int, default=2, help="processes that share a batch")
    return parser.parse_args()


# --- text -------------------------------------------------------------------------------------


def documents(sources: Path) -> tuple[list[Document], list[Document]]:
    """The documents to train on and the ones held out; a document's name decides."""
    every = [document for source in SOURCES for document in source.documents(sources)]
    return [d for d in every if not d.held_out], [d for d in every if d.held_out]


def train_stream(sources: Path, runs: Path) -> np.ndarray:
    """The training part as token ids; the tokenizer is made from it first, once."""
    cached = runs / "train.npy"
    if not cached.exists():
        seen, held_out = documents(sources)
        make_tokenizer(seen).save_pretrained(runs / "tokenizer")
        np.save(runs / "held_out.npy", encoded(held_out, runs))
        np.save(cached, encoded(seen, runs))
    return np.load(cached, allow_pickle=False)


def make_tokenizer(seen: list[Document]) -> PreTrainedTokenizerFast:
    """A byte-level BPE learnt from the training part."""
    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        (document.text for document in seen),
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def encoded(texts: list[Document], runs: Path) -> np.ndarray:
    """One stream of ids, every document begun by the end-of-text token."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(runs / "tokenizer")
    pieces = tokenizer.backend_tokenizer.encode_batch([document.text for document in texts])
    start = tokenizer.bos_token_id
    return np.concatenate([np.array([start, *piece.ids], dtype=np.uint16) for piece in pieces])


# --- sequences --------------------------------------------------------------------------------


def total_steps() -> int:
    """Length of the recipe."""
    return sum(phase.steps for phase in PHASES)


def phase_at(step: int) -> Phase:
    """The phase that a step belongs to."""
    for phase in PHASES:
        if step < phase.steps:
            return phase
        step -= phase.steps
    return PHASES[-1]


def batch_at(step: int, stream: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, positions and which next tokens count, [batch, length] each, for one step.

    Of a repeat only what can be known counts: everything after its first period.
    """
    phase, generator = phase_at(step), torch.Generator().manual_seed(SEED + step)
    repeats = phase.repeats
    counts = torch.ones(phase.batch, phase.length, dtype=torch.bool)
    ids = _windows(stream, phase, generator)
    ids[:repeats], counts[:repeats] = _repeats(phase, repeats, generator)
    counts[:, -1] = False
    return ids, _positions(phase, generator), counts


def _windows(stream: np.ndarray, phase: Phase, generator: torch.Generator) -> Tensor:
    last = len(stream) - phase.length
    starts = torch.randint(last, (phase.batch,), generator=generator).tolist()
    rows = np.stack([stream[start : start + phase.length] for start in starts])
    return torch.from_numpy(rows.astype(np.int64))


def _repeats(phase: Phase, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random tokens that come again after a period of random length, and where they do."""
    between = (phase.shortest_period, phase.longest_period + 1)
    period = torch.randint(*between, (rows, 1), generator=generator)
    once = torch.randint(1, VOCABULARY, (rows, phase.longest_period), generator=generator)
    place = torch.arange(phase.length).expand(rows, -1)
    return once.gather(1, place % period), place >= period - 1


def _positions(phase: Phase, generator: torch.Generator) -> Tensor:
    """Half of the sequences begin at position 0, half anywhere: so every position is trained."""
    room = POSITIONS - phase.length
    offset = torch.randint(room + 1, (phase.batch, 1), generator=generator)
    offset[torch.randperm(phase.batch, generator=generator)[: phase.batch // 2]] = 0
    return offset + torch.arange(phase.length)


class Teacher:
    """The trigram model of the training part, as targets for a batch."""

    def __init__(self, stream: np.ndarray) -> None:
        self.trigram = Trigram.trained_on(stream, VOCABULARY)
        self.after_one = self.trigram.after_one()

    def targets(self, ids: Tensor, counts: Tensor, share: Tensor) -> Tensor:
        """Distributions to learn, [counted token, vocabulary]; ``share`` is the teacher's, a row.

        At the first place of a sequence the teacher knows one token, elsewhere two.
        """
        part = share[:, None].expand(ids.shape)[counts]
        taught = part > 0
        before, last = ids.roll(1, dims=1)[counts][taught], ids[counts][taught]
        first = torch.zeros_like(counts).index_fill(1, torch.tensor(0), True)[counts][taught]
        known = self.trigram.after_two(before.numpy(), last.numpy(), self.after_one)
        known[first.numpy()] = self.after_one[last[first].numpy()]
        targets = torch.zeros(len(part), VOCABULARY)
        targets[taught] = torch.from_numpy(known).mul_(part[taught, None])
        targets[torch.arange(len(part)), ids.roll(-1, dims=1)[counts]] += 1 - part
        return targets


# --- the model's start ------------------------------------------------------------------------


def fresh_model() -> GPT2LMHeadModel:
    """A GPT-2 whose start holds the beginnings of looking back and copying."""
    torch.manual_seed(SEED)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=POSITIONS,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        activation_function="gelu_pytorch_tanh",
        initializer_range=0.08,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for block in model.transformer.h:
            _start_mimetic(block)
        _start_looking_back(model)
    return model


def _start_mimetic(block: torch.nn.Module) -> None:
    """Heads that match like with like and hand on what they read, every part of a small size.

    W_K is correlated with W_Q and W_O with W_V transposed, as in Trockman and Kolter, "Mimetic
    initialization of self-attention layers" (2023).
    """
    joint = block.attn.c_attn.weight.normal_(0, WIDTH**-0.5)
    query, key, value = joint.split(WIDTH, dim=1)
    key.copy_(0.7 * query + math.sqrt(1 - 0.7**2) * key)
    block.attn.c_proj.weight.copy_(0.08 * value.T)
    block.mlp.c_fc.weight.normal_(0, WIDTH**-0.5)
    block.mlp.c_proj.weight.normal_(0, 0.003)


def _start_looking_back(model: GPT2LMHeadModel) -> None:
    """Positions as Fourier features, and two heads that begin as the parts of induction.

    The frequencies are spread evenly over (0, π), so two positions are alike only if they are the
    same, and one step back is one rotation of every (cos, sin) pair, the same at all positions.
    Head 0.0 starts with that rotation between its keys and its queries: it looks back one token,
    and writes what it reads there into directions of its own. Head 1.0 starts by comparing its own
    token with what stands in those directions.
    """
    frequency = math.pi * (torch.arange(FREQUENCIES) + torch.rand(FREQUENCIES)) / FREQUENCIES
    angle = torch.arange(POSITIONS)[:, None] * frequency
    basis = torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q
    plane_cos, plane_sin = basis[: 2 * FREQUENCIES : 2], basis[1 : 2 * FREQUENCIES : 2]
    size = 0.08 * math.sqrt(WIDTH / FREQUENCIES)
    model.transformer.wpe.weight.copy_(size * (angle.cos() @ plane_cos + angle.sin() @ plane_sin))

    some = torch.linspace(0, FREQUENCIES - 1, D_HEAD // 2).round().long()
    c, s = frequency[some, None].cos(), frequency[some, None].sin()
    here = torch.cat([plane_cos[some], plane_sin[some]])
    back = torch.cat(
        [c * plane_cos[some] + s * plane_sin[some], c * plane_sin[some] - s * plane_cos[some]]
    )
    read, written = basis[2 * FREQUENCIES :].split(D_HEAD)
    _start_head(model.transformer.h[0], 1.6 * back, 1.6 * here, read, 0.18 * written)
    _start_head(model.transformer.h[1], 1.5 * read, 1.5 * written, read, 0.18 * read)


def _start_head(
    block: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, output: Tensor
) -> None:
    """Set head 0 of a block; each part is [d_head, d_model]."""
    joint = block.attn.c_attn.weight
    for place, part in enumerate((query, key, value)):
        joint[:, place * WIDTH : place * WIDTH + D_HEAD] = part.T
    block.attn.c_proj.weight[:D_HEAD] = output


# --- the run ----------------------------------------------------------------------------------


@dataclass
class Run:
    """A model in training: what a checkpoint holds."""

    model: GPT2LMHeadModel
    optimizer: torch.optim.Optimizer
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @classmethod
    def fresh(cls) -> Run:
        """The start of the recipe."""
        model = fresh_model()
        return cls(model, _optimizer(model))

    @classmethod
    def resumed(cls, runs: Path) -> Run:
        """Where the last checkpoint left off."""
        run, state = cls.fresh(), torch.load(runs / "state.pt", weights_only=True)
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
        run.step, run.tokens, run.seconds = state["step"], state["tokens"], state["seconds"]
        return run

    def save(self, runs: Path) -> None:
        """Write the checkpoint; it takes the final name only when it is complete."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
        }
        torch.save(state, runs / "state.part")
        (runs / "state.part").replace(runs / "state.pt")

    def advance(self, stream: np.ndarray, teacher: Teacher) -> None:
        """One step of the optimizer."""
        begin = time.monotonic()
        for group in self.optimizer.param_groups:
            group["lr"] = group["share"] * rate_at(self.step)
        batch = batch_at(self.step, stream)
        ids, positions, counts = (part[dist.get_rank() :: dist.get_world_size()] for part in batch)
        hidden = self.model.transformer(ids, position_ids=positions).last_hidden_state
        logits = self.model.lm_head(hidden[counts])
        targets = teacher.targets(ids, counts, self._taught(ids))
        loss = F.cross_entropy(logits, targets, reduction="sum")
        self.optimizer.zero_grad()
        (loss / batch[2].sum()).backward()
        _sum_gradients(self.model)
        if self.step < HELD_STEPS:
            _hold_positions(self.model)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        self.tokens += batch[0].numel()
        self.seconds += time.monotonic() - begin

    def _taught(self, ids: Tensor) -> Tensor:
        """The teacher's share in every sequence of this worker: none in the repeats."""
        phase = phase_at(self.step)
        share = torch.full((phase.batch,), phase.taught)
        share[: phase.repeats] = 0.0
        return share[dist.get_rank() :: dist.get_world_size()]

    def report(self, runs: Path) -> None:
        """One line on where training stands."""
        line = f"step {self.step} tokens {self.tokens / 1e6:.2f}M {self.seconds / 60:.1f} min "
        line += f"text {_text_loss(self.model, runs):.3f} {heads_line(self.model)}"
        print(line, flush=True)


def rate_at(step: int) -> float:
    """The learning rate of a step."""
    return float(np.interp(step, *zip(*RATES, strict=True)))


def _optimizer(model: GPT2LMHeadModel) -> torch.optim.Optimizer:
    matrices = [p for name, p in model.named_parameters() if p.ndim > 1 and ".wpe" not in name]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": 0.05, "share": 1.0},
        {"params": vectors, "weight_decay": 0.0, "share": 1.0},
        {"params": [model.transformer.wpe.weight], "weight_decay": 0.0, "share": 0.1},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.97), fused=True)


def _sum_gradients(model: GPT2LMHeadModel) -> None:
    """Every worker's gradient becomes the sum over the workers."""
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def _hold_positions(model: GPT2LMHeadModel) -> None:
    """No gradient for the positions and for the queries and keys of the head that looks back."""
    model.transformer.wpe.weight.grad.zero_()
    joint = model.transformer.h[0].attn.c_attn.weight.grad
    joint[:, :D_HEAD] = 0
    joint[:, WIDTH : WIDTH + D_HEAD] = 0


# --- watching ---------------------------------------------------------------------------------


def _text_loss(model: GPT2LMHeadModel, runs: Path) -> float:
    """Loss in nats per token on a small held-out piece, windows of 256."""
    held_out = np.load(runs / "held_out.npy", allow_pickle=False).astype(np.int64)
    windows = len(held_out) // 256
    ids = torch.from_numpy(held_out[: windows * 256]).view(windows, 256)[::24]
    with torch.no_grad():
        return model(ids, labels=ids).loss.item()


def heads_line(model: GPT2LMHeadModel, period: int = 40) -> str:
    """Copying loss, best previous-token and induction scores, the latter's profile."""
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.arange(1, VOCABULARY)
    rows = [repeated_random_tokens(tokens, period, generator) for _ in range(12)]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(torch.stack(rows), output_attentions=True)
    model.set_attn_implementation("sdpa")
    weights = torch.stack(output.attentions)
    logits, wanted = output.logits[:, period:-1], torch.stack(rows)[:, period + 1 :]
    loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
    offsets = torch.arange(-2, 4)
    pairs = enumerate(rows)
    profile = torch.stack([induction_profile(weights[:, i], ids, offsets) for i, ids in pairs])
    profile = profile.mean(0).flatten(0, 1)
    previous = torch.stack([previous_token(weights[:, i]) for i in range(len(rows))]).mean(0)
    best = int(profile[:, 2].argmax())
    return (
        f"copy {loss:.3f} previous {previous.max():.2f} {divmod(int(previous.argmax()), HEADS)} "
        f"induction {profile[best, 2]:.2f} {divmod(best, HEADS)} "
        f"profile {' '.join(f'{weight:.2f}' for weight in profile[best])}"
    )


if __name__ == "__main__":
    main()
