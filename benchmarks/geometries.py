"""The models that benchmarks run: seeded random weights of a stated size, and the bundled ones."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    PreTrainedModel,
)

from attnprobe import capture, sources
from attnprobe.families import FAMILIES

SMALL, BERT, GPT2 = "gpt2-small", "bundled:bert", "bundled:gpt2"
_AUTO = {SMALL: AutoModelForCausalLM, BERT: AutoModel, GPT2: AutoModelForCausalLM}


@dataclass(frozen=True)
class Geometry:
    """A named model in float32, the longest text it has to read, and the device it is on.

    Beyond the positions that a model has, its position vectors begin again: which they are makes
    no difference to what a pass costs, and what comes out is not looked at.
    """

    name: str
    longest: int = 0
    device: str = "cpu"

    def model(self, implementation: str) -> PreTrainedModel:
        """With one of transformers' attention implementations, or with ours."""
        made = self._seeded(implementation) if self.name == SMALL else self._bundled(implementation)
        if self.longest > made.config.max_position_embeddings:
            made = self._lengthened(made, implementation)
        return _ready(made.to(self.device), implementation)

    def _seeded(self, implementation: str) -> PreTrainedModel:
        torch.manual_seed(0)
        return GPT2LMHeadModel(GPT2Config(attn_implementation=implementation))

    def _bundled(self, implementation: str) -> PreTrainedModel:
        return _AUTO[self.name].from_pretrained(
            sources.find(self.name).folder, dtype=torch.float32, attn_implementation=implementation
        )

    def _lengthened(self, short: PreTrainedModel, implementation: str) -> PreTrainedModel:
        config = deepcopy(short.config)
        config.max_position_embeddings = self.longest
        long = _AUTO[self.name].from_config(config, attn_implementation=implementation)
        table = f"{FAMILIES[config.model_type].position_table}.weight"
        weights = short.state_dict()
        name = next(key for key in weights if key.endswith(table))
        again = torch.arange(self.longest) % len(weights[name])
        long.load_state_dict(weights | {name: weights[name][again]})
        return long


def positions(name: str) -> int:
    """The longest text that one of the named models reads."""
    if name == SMALL:
        return GPT2Config().n_positions
    return AutoConfig.from_pretrained(sources.find(name).folder).max_position_embeddings


def layer_pair(kind: str, positions: int, heads: int, implementation: str) -> PreTrainedModel:
    """Two layers of BERT or GPT-2 with heads of width 64 and long positions, without a head."""
    torch.manual_seed(0)
    width = 64 * heads
    if kind == "gpt2":
        config = GPT2Config(
            n_layer=2, n_head=heads, n_embd=width, n_positions=positions, vocab_size=256,
            attn_implementation=implementation,
        )  # fmt: skip
        return _ready(GPT2Model(config), implementation)
    config = BertConfig(
        num_hidden_layers=2, num_attention_heads=heads, hidden_size=width, vocab_size=256,
        intermediate_size=4 * width, max_position_embeddings=positions,
        attn_implementation=implementation,
    )  # fmt: skip
    return _ready(BertModel(config, add_pooling_layer=False), implementation)


def _ready(made: PreTrainedModel, implementation: str) -> PreTrainedModel:
    made.eval().requires_grad_(False)
    if implementation == capture.IMPLEMENTATION:
        family = FAMILIES[made.config.model_type]
        capture.wrap_layers(family.layer_list(made), family)
    return made


def forward(module: PreTrainedModel, **options: object) -> Callable[[int], object]:
    """Runs a model on so many random ids, the same every time."""
    cache = {"use_cache": False} if module.config.model_type == "gpt2" else {}

    def run(tokens: int) -> object:
        ids = random_ids(tokens).to(module.device)
        return module(ids, attention_mask=torch.ones_like(ids), **cache, **options)

    return run


def random_ids(tokens: int, vocabulary: int = 256) -> Tensor:
    """[1 position] ids by a fixed seed."""
    return torch.randint(vocabulary, (1, tokens), generator=torch.Generator().manual_seed(1))
