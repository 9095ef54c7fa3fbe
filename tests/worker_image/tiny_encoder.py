"""Writes a tiny BERT with random weights, and what transformers computes with it: `python tiny_encoder.py FOLDER`.

`expected.json` has the embedding of each text of `TEXTS`: the last hidden state of `[CLS]`, of length 1.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

TEXTS: Final = ("w1 w2 w3", "w1 w2 w4", "w900 w77 w77 w5 w300 w301 w302", "w8")
EXPECTED: Final = "expected.json"
_SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_WORDS: Final = 1024
_SIZES: Final = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "pad_token_id": 0,
    "vocab_size": _WORDS + len(_SPECIAL),
}
_SEED: Final = 1


def write(folder: Path) -> None:
    """Write config, weights, tokenizer and the expected embeddings."""
    import torch
    import transformers

    vocabulary = {token: number for number, token in enumerate((*_SPECIAL, *(f"w{word}" for word in range(_WORDS))))}
    tokenizer = _tokenizer(vocabulary)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(_SEED)
    # Wide enough that texts differ in all of the embedding.
    model = transformers.BertModel(transformers.BertConfig(**_SIZES, initializer_range=0.1)).eval()
    model.save_pretrained(folder)
    expected: dict[str, list[float]] = {}
    with torch.no_grad():
        for text in TEXTS:
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 0]
            expected[text] = (hidden / hidden.norm()).tolist()
    (folder / EXPECTED).write_text(json.dumps(expected), encoding="utf-8")


def _tokenizer(vocabulary: dict[str, int]) -> object:
    import tokenizers
    import transformers
    from tokenizers import models, pre_tokenizers, processors

    made = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    names = {f"{token[1:-1].lower()}_token": token for token in _SPECIAL}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    write(Path(sys.argv[1]))
