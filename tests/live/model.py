"""A model folder without weights, for `vllm serve --load-format dummy`: two small layers, and a tokenizer of numbered words."""

import json
from pathlib import Path
from typing import Final

WORDS: Final = 1000
SPECIAL: Final = ("<pad>", "<s>", "</s>", "<unk>")


def make(folder: Path) -> Path:
    """Write it; every word w0 ... w999 is one token."""
    folder.mkdir(parents=True)
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *(f"w{number}" for number in range(WORDS))])}
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 128,
        "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64,
        "vocab_size": 1024, "max_position_embeddings": 4096, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "added_tokens": [
            {"id": number, "content": word, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True} for number, word in enumerate(SPECIAL)
        ],
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }  # fmt: skip
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    files = {
        "config.json": config,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096, **names},
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder
