"""The small GPT-2 that ships: what its card claims, measured again on the shipped weights."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel

import attnprobe as ap
from attnprobe.analyses.roles import repeated_random_tokens, role_table
from attnprobe.text import Batch

FOLDER = Path(ap.__file__).parent / "bundled" / "gpt2"
METRICS = json.loads((FOLDER / "metrics.json").read_text())
HEADS = METRICS["heads"]


@pytest.fixture(scope="module")
def loaded():
    return ap.load("bundled:gpt2", device="cpu")


def repeats(loaded, seed, rows, period=HEADS["period"]):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.arange(1, loaded.config.vocab_size)
    made = [repeated_random_tokens(tokens, period, generator) for _ in range(rows)]
    return torch.stack(made)


def copying_loss(loaded, ids):
    with torch.no_grad():
        logits = loaded.forward(Batch(ids, torch.ones_like(ids, dtype=torch.bool)))
    half = ids.shape[1] // 2
    return F.cross_entropy(logits[:, half:-1].mT, ids[:, half + 1 :]).item()


def test_it_is_a_genuine_gpt2_that_transformers_loads_offline():
    model = AutoModelForCausalLM.from_pretrained(FOLDER, local_files_only=True)
    assert type(model) is GPT2LMHeadModel
    assert model.config.activation_function == "gelu_new"
    assert model.lm_head.weight is model.transformer.wte.weight


def test_the_folder_is_small_and_holds_float16_safetensors():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 12e6
    with safe_open(FOLDER / "model.safetensors", "pt") as file:
        names = list(file.keys())
        assert {file.get_slice(name).get_dtype() for name in names} == {"F16"}


@pytest.mark.parametrize("text", ["To be, or not to be", "naïve café 🙂\n\ttabs", "  two  blanks "])
def test_its_tokenizer_gives_every_text_back(text):
    tokenizer = AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.bos_token_id not in ids


def test_end_of_text_is_one_special_token(loaded):
    tokenizer = loaded.reader.tokenizer
    assert tokenizer("<|endoftext|>")["input_ids"] == [tokenizer.bos_token_id]
    assert tokenizer.convert_ids_to_tokens(loaded.config.bos_token_id) == "<|endoftext|>"


def test_every_position_is_trained(loaded):
    """An untrained one keeps its start and gives a worse loss at the end of the context."""
    assert loaded.max_tokens == loaded.config.n_positions == 512
    ids = repeats(loaded, seed=5, rows=4, period=256)
    with torch.no_grad():
        logits = loaded.forward(Batch(ids, torch.ones_like(ids, dtype=torch.bool)))
    losses = F.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none")
    assert losses[:, -64:].mean() < 0.5 * math.log(loaded.config.vocab_size)


def test_the_heads_score_what_the_card_says(loaded):
    table = role_table(loaded, repeats(loaded, HEADS["seed"], HEADS["sequences"]))
    for measured, claimed in zip(table.to_dict(orient="records"), HEADS["table"], strict=True):
        for role in ("layer", "head", "previous_token", "duplicate_token", "induction"):
            assert measured[role] == pytest.approx(claimed[role], abs=2e-4)


def test_one_head_looks_back_and_one_does_induction_on_tokens_nobody_has_measured(loaded):
    table = role_table(loaded, repeats(loaded, seed=77, rows=7, period=41))
    assert table["previous_token"].max() >= 0.6
    assert table["induction"].max() >= 0.6


def test_the_copying_losses_are_what_the_card_says(loaded):
    ids = repeats(loaded, HEADS["seed"], HEADS["sequences"])
    assert copying_loss(loaded, ids) == pytest.approx(HEADS["copying_loss"], abs=1e-3)


def test_ablating_the_induction_head_hurts_copying_three_times_the_median_head(loaded):
    ids = repeats(loaded, seed=78, rows=7, period=41)
    whole = copying_loss(loaded, ids)
    best = max(HEADS["table"], key=lambda row: row["induction"])
    rises = {}
    for row in HEADS["table"]:
        cell = (row["layer"], row["head"])
        with ap.watching(ap.gate({cell: 0.0})):
            rises[cell] = copying_loss(loaded, ids) - whole
    assert rises[best["layer"], best["head"]] >= 3 * max(np.median(list(rises.values())), 0.01)


def test_the_model_beats_the_trigram_model_in_the_measured_figures():
    text = METRICS["text"]
    assert text["model_nats_per_token"] < text["trigram_nats_per_token"] - 0.05
    for name in ("model", "trigram"):
        bits = text[f"{name}_nats_per_token"] * (text["held_out_tokens"] - 2) / math.log(2)
        assert text[f"{name}_bits_per_byte"] == pytest.approx(bits / text["held_out_bytes"])


def test_it_predicts_plain_english_far_better_than_a_uniform_guess(loaded):
    tokens = loaded.read("the act of making something known to the public; a small group of people")
    with torch.no_grad():
        logits = loaded.forward(loaded.batch(tokens))[0]
    loss = F.cross_entropy(logits[:-1], torch.tensor(tokens.ids)[1:]).item()
    assert loss < 0.75 * math.log(loaded.config.vocab_size)


def test_the_card_states_the_measured_figures_and_the_licence():
    card = (FOLDER / "CARD.md").read_text()
    for name in ("model_nats_per_token", "trigram_nats_per_token", "model_bits_per_byte"):
        assert f"{METRICS['text'][name]:.3f}" in card
    assert "for looking at heads, not for writing" in card
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in (FOLDER / "NOTICE").read_text()
    assert (FOLDER / "LICENSE").read_text().strip().startswith("Apache License")
