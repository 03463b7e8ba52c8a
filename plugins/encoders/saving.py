"""Saves a BERT in the format of ``transformers``: config.json, model.safetensors and the tokenizer's files."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece
from tokenizers.normalizers import Lowercase, Sequence
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from taskloom.core import SpecialTokens
from taskloom.plugins.encoders.bert import Architecture
from taskloom.plugins.encoders.weights import sources

#: The entries of ``config.json`` that all our BERTs share.
_BERT = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
}


def save_tensors(folder: Path, state: dict[str, Tensor], sizes: Architecture, *, pooler: bool) -> None:
    """Write ``config.json``, and the weights under BERT's own names: the inverse of ``load_tensors``."""
    named: dict[str, Tensor] = {}
    for ours, parts in sources(sizes, pooler=pooler).items():
        pieces = torch.split(state[ours].detach().cpu().float(), [shape[0] for _, shape in parts])
        named |= {name: piece.clone() for (name, _), piece in zip(parts, pieces, strict=True)}
    save_file(named, folder / "model.safetensors", {"format": "pt"})
    _write(folder / "config.json", {**_BERT, **sizes.model_dump(by_alias=True)})


def save_tokenizer(folder: Path, tokenizer: Tokenizer, special_tokens: SpecialTokens, max_length: int) -> None:
    """Write a tokenizer that adds the special tokens, truncates and pads.

    ``tokenizer.json`` holds all of it, and ``PreTrainedTokenizerFast`` loads it unchanged; BERT's own classes would
    rebuild it from ``vocab.txt``, which is written for other readers.
    """
    saved = Tokenizer.from_str(tokenizer.to_str())
    (start,), (end,) = special_tokens.start, special_tokens.end
    first, last = (str(saved.id_to_token(token)) for token in (start, end))
    saved.post_processor = TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(first, start), (last, end)],
    )
    saved.decoder = WordPiece()
    ids = saved.get_vocab(with_added_tokens=True)
    padding: str = next((token for token in ("[PAD]", "<pad>") if token in ids), last)  # masked in any case
    saved.enable_truncation(max_length)
    saved.enable_padding(pad_id=ids[padding], pad_token=padding)
    saved.save(str(folder / "tokenizer.json"))
    lines = [token for token, _ in sorted(ids.items(), key=lambda pair: pair[1])]
    (folder / "vocab.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    tokens = {"cls_token": first, "sep_token": last, "pad_token": padding, "unk_token": saved.model.unk_token}
    if mask := next((token for token in ("[MASK]", "<mask>") if token in ids), None):
        tokens["mask_token"] = mask
    _write(folder / "special_tokens_map.json", tokens)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        "do_lower_case": getattr(saved.normalizer, "lowercase", False),
    }
    _write(folder / "tokenizer_config.json", settings | tokens)


def lower_texts(folder: Path) -> None:
    """Make the tokenizer in a folder lower-case texts first."""
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    before = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = Sequence([Lowercase(), *before])
    tokenizer.save(path)


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
