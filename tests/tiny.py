"""Small seeded models with odd, pairwise different sizes, saved as folders that `load` takes."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel
from tokenizers.processors import BertProcessing, RobertaProcessing
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

WORDS = ["the", "cat", "sat", "on", "mat", "because", "it", "was", "tired", "dog", "ran"]
WORDS += ["and", "then", "came", "a", "zebra", "apple", "mango"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wordpiece() -> PreTrainedTokenizerFast:
    letters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    pieces = [*SPECIAL, *letters, *("##" + c for c in letters), *WORDS]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = BertProcessing(("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"]))
    tokenizer.decoder = decoders.WordPiece()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def byte_level(*, wrapped: bool = False) -> PreTrainedTokenizerFast:
    """GPT-2's bytes without merges; `wrapped` adds RoBERTa's <s> and </s>."""
    special = ["<s>", "<pad>", "</s>", "<mask>"] if wrapped else ["<|endoftext|>"]
    pieces = [*special, *sorted(ByteLevel.alphabet())]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if not wrapped:
        end = "<|endoftext|>"
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, bos_token=end, eos_token=end, unk_token=end
        )
    tokenizer.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        cls_token="<s>",
        sep_token="</s>",
        pad_token="<pad>",
        mask_token="<mask>",
    )


def bert_config(**changes) -> BertConfig:
    sizes = {
        "vocab_size": len(wordpiece()),
        "hidden_size": 21,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 37,
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
    }
    return BertConfig(**(sizes | changes))


def gpt2_config(**changes) -> GPT2Config:
    sizes = {
        "vocab_size": len(byte_level()),
        "n_embd": 20,
        "n_layer": 3,
        "n_head": 5,
        "n_positions": 64,
        "initializer_range": 0.3,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return GPT2Config(**(sizes | changes))


def _roberta():
    config = RobertaConfig(
        vocab_size=len(byte_level(wrapped=True)),
        hidden_size=22,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=31,
        max_position_embeddings=66,
        type_vocab_size=1,
        initializer_range=0.3,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    return RobertaForMaskedLM(config), byte_level(wrapped=True)


def _distilbert():
    config = DistilBertConfig(
        vocab_size=len(wordpiece()),
        dim=20,
        n_layers=3,
        n_heads=4,
        hidden_dim=33,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    return DistilBertForMaskedLM(config), wordpiece()


def _electra():
    config = ElectraConfig(
        vocab_size=len(wordpiece()),
        embedding_size=13,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=29,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    return ElectraForMaskedLM(config), wordpiece()


KINDS = {
    "bert": lambda: (BertModel(bert_config()), wordpiece()),
    "bert-mlm": lambda: (BertForMaskedLM(bert_config()), wordpiece()),
    "bert-classifier": lambda: (
        BertForSequenceClassification(bert_config(num_labels=4)),
        wordpiece(),
    ),
    "bert-tagger": lambda: (BertForTokenClassification(bert_config(num_labels=5)), wordpiece()),
    "gpt2": lambda: (GPT2LMHeadModel(gpt2_config()), byte_level()),
    "roberta": _roberta,
    "distilbert": _distilbert,
    "electra": _electra,
}


def save(folder: Path, kind: str, *, seed: int = 0) -> Path:
    """A tiny model of this kind with its tokenizer; every parameter is random, biases too."""
    torch.manual_seed(seed)
    model, tokenizer = KINDS[kind]()
    return save_model(folder, model, tokenizer)


def save_model(folder: Path, model, tokenizer) -> Path:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def edit_config(folder: Path, **changes) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder
