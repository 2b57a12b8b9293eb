"""A Llama of 0.4 M random parameters with its own tokenizer, for engines without a GPU.

Deterministic and made from nothing: a byte-level BPE trained on the help text that ships with
Python, weights from a seeded generator, written in the safetensors layout by hand (a JSON header
with offsets, then raw little-endian arrays).
"""

import json
import struct
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

VOCABULARY = 2048
SPECIAL = ("<|pad|>", "<|begin|>", "<|turn|>", "<|over|>")
# A turn reads the same whatever follows it, so a longer conversation starts with a shorter one.
TEMPLATE = (
    "<|begin|>"
    "{%- for message in messages %}"
    "{{ '<|turn|>' + message['role'] + '\\n' + message['content'] + '<|over|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{%- endif %}"
)
# Head size 32 is the least that vLLM's CPU attention takes.
SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def make_tiny_model(directory: Path, *, context: int = 32768, seed: int = 7) -> Path:
    """Write the model into `directory` (once) and return it."""
    if (directory / "model.safetensors").exists():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    special = {name: tokenizer.token_to_id(name) for name in SPECIAL}
    for name, content in _configs(special, context).items():
        (directory / name).write_text(json.dumps(content, indent=1))
    _write_weights(directory / "model.safetensors", _weights(np.random.default_rng(seed)))
    return directory


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=ByteLevel.alphabet(),
        special_tokens=[AddedToken(name, special=True, normalized=False) for name in SPECIAL],
        show_progress=False,
    )
    tokenizer.train_from_iterator([topics[name] for name in sorted(topics)], trainer)
    return tokenizer


def _configs(special: dict[str, int], context: int) -> dict[str, dict[str, Any]]:
    ends = {
        "bos_token_id": special["<|begin|>"],
        "eos_token_id": special["<|over|>"],
        "pad_token_id": special["<|pad|>"],
    }
    model = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **SHAPE,
        **ends,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": context,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
    }
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "bos_token": "<|begin|>",
        "eos_token": "<|over|>",
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }
    return {
        "config.json": model,
        "tokenizer_config.json": tokenizer,
        "generation_config.json": ends,
    }


def _weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    hidden, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    queries = SHAPE["num_attention_heads"] * SHAPE["head_dim"]
    keys = SHAPE["num_key_value_heads"] * SHAPE["head_dim"]

    def matrix(rows: int, columns: int, scale: float | None = None) -> np.ndarray:
        drawn = rng.standard_normal((rows, columns)) * (scale or columns**-0.5)
        return drawn.astype("<f4")

    weights = {
        "model.embed_tokens.weight": matrix(VOCABULARY, hidden, 1.0),
        "lm_head.weight": matrix(VOCABULARY, hidden),
        "model.norm.weight": np.ones(hidden, "<f4"),
    }
    for layer in range(SHAPE["num_hidden_layers"]):
        shapes = {
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        at = f"model.layers.{layer}."
        weights |= {f"{at}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        weights |= {
            f"{at}{name}.weight": np.ones(hidden, "<f4")
            for name in ("input_layernorm", "post_attention_layernorm")
        }
    return weights


def _write_weights(path: Path, weights: dict[str, np.ndarray]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, array in weights.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for array in weights.values():
            out.write(array.tobytes())
