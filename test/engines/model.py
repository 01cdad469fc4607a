# SPDX-License-Identifier: Apache-2.0
"""Write a small model of random weights, whose tokens are bytes. Usage: model.py DIR [SEED]"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

# Of the same shape otherwise. A window is two blocks; a short convolution is a recurrent state.
WINDOW = 64
KINDS = {
    "full": (LlamaConfig, LlamaForCausalLM, {"head_dim": 64}),
    "window": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {
            "head_dim": 64,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "state": (
        Lfm2Config,
        Lfm2ForCausalLM,
        {
            "layer_types": ["conv", "full_attention"] * 2,
            "block_dim": 256,
            "conv_dim": 256,
            "block_auto_adjust_ff_dim": False,
        },
    ),
}


def write(folder: Path, seed: int = 7, layers: int = 4, kind: str = "full") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for token in ("<s>", "</s>"):
        vocabulary[token] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config_class, model_class, more = KINDS[kind]
    config = config_class(
        vocab_size=320,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        bos_token_id=vocabulary["<s>"],
        eos_token_id=vocabulary["</s>"],
        tie_word_embeddings=False,
        initializer_range=0.2,  # so large that tokens depend on the whole prompt
        torch_dtype="float32",
        **more,
    )
    model_class(config).save_pretrained(folder, safe_serialization=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
