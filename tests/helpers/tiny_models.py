"""Tiny models of several architectures with random weights, saved as transformers saves them."""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "house",
    "small",
    "ran",
    ",",
    "yes",
    "no",
    *(f"word{number}" for number in range(40)),
]
SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 50,
    "initializer_range": 0.3,
}
TEXTS = ["the cat", "a small dog , which ran , ran , ran and ran to the house of word7", "yes", ""]
OTHERS = ["no", "word3 word4", "the small house word9 ran the dog the cat the house", "a"]


def new_model(kind: str) -> Any:
    """A model of transformers; all but BERT have something that BERT has not."""
    import transformers as library

    roberta = {"type_vocab_size": 1, "pad_token_id": 1}
    frame = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    made = {
        "bert": lambda: library.BertConfig(**SIZES),
        "relu bert": lambda: library.BertConfig(**SIZES, hidden_act="relu"),
        "roberta": lambda: library.RobertaConfig(**SIZES, **roberta),
        "xlm-r": lambda: library.XLMRobertaConfig(**SIZES, **roberta),
        "mpnet": lambda: library.MPNetConfig(**SIZES),
        "electra": lambda: library.ElectraConfig(**SIZES, embedding_size=8),
        "albert": lambda: library.AlbertConfig(**SIZES, embedding_size=8, **frame),
        "deberta": lambda: library.DebertaV2Config(
            **SIZES,
            relative_attention=True,
            position_biased_input=False,
            pos_att_type=["p2c", "c2p"],
            type_vocab_size=0,
        ),
        "modernbert": lambda: library.ModernBertConfig(
            **SIZES, **frame, cls_token_id=2, sep_token_id=3, local_attention=8, global_attn_every_n_layers=2
        ),
        "distilbert": lambda: library.DistilBertConfig(
            vocab_size=60,
            dim=16,
            n_layers=2,
            n_heads=4,
            hidden_dim=24,
            max_position_embeddings=50,
            initializer_range=0.3,
        ),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = library.AutoModel.from_config(made[kind](), attn_implementation="eager").eval()
        with torch.no_grad():  # what begins as zero or one has to show itself, too
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


def new_tokenizer(kind: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    doubled = kind in ("roberta", "xlm-r", "mpnet")
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if doubled else ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    order = names if doubled else [names[1], names[3], names[0], names[2], names[4]]
    vocabulary = {word: number for number, word in enumerate([*order, *WORDS])}
    if doubled:
        backend = Tokenizer(models.WordLevel(vocabulary, unk_token=names[3]))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.post_processor = processors.RobertaProcessing((names[2], 2), (names[0], 0))
    else:
        backend = Tokenizer(models.WordPiece(vocabulary, unk_token=names[3]))
        backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        backend.post_processor = processors.BertProcessing((names[2], 3), (names[0], 2))
    inputs = ["input_ids", "attention_mask"]
    if not doubled and kind not in ("distilbert", "modernbert"):
        inputs.append("token_type_ids")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        cls_token=names[0],
        pad_token=names[1],
        sep_token=names[2],
        unk_token=names[3],
        mask_token=names[4],
        model_input_names=inputs,
        model_max_length=48,
    )


def save_model(kind: str, folder: Path) -> Path:
    """Write the model and its tokenizer."""
    new_model(kind).save_pretrained(folder)
    new_tokenizer(kind).save_pretrained(folder)
    return folder
