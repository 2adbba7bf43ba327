"""Writes a reranker into the weights of a BERT: it scores a text by the share of one word in it.

    python tests/support/tiny_reranker.py good tiny.gguf     write it, and serve it until stdin ends

All tokens have the same embedding but for the word, which has another. With zeros for queries and
keys, attention adds the mean of all tokens to each. Past the norms, a classifier of one class looks
at the difference that the word makes to the first token.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZE = 32
POSITIONS = 512


def build_reranker_gguf(word: str, path: str | Path) -> None:
    """Write the model to a file."""
    tokens = [*SPECIAL, f"\u2581{word}"]
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("reranker")
    writer.add_context_length(POSITIONS)
    writer.add_embedding_length(SIZE)
    writer.add_block_count(1)
    writer.add_feed_forward_length(SIZE)
    writer.add_head_count(1)
    writer.add_layer_norm_eps(1e-6)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control] * len(SPECIAL) + [normal])
    writer.add_token_type_count(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_eos_token_id(3)
    writer.add_mask_token_id(4)
    add_weights(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_weights(writer: gguf.GGUFWriter) -> None:
    """Add the weights of one block and of the classifier."""
    embeddings = np.zeros((len(SPECIAL) + 1, SIZE), np.float32)
    embeddings[:, 0] = 1
    embeddings[-1, 0], embeddings[-1, 1] = 0, 1
    zeros, one = np.zeros(SIZE, np.float32), np.ones(SIZE, np.float32)
    nothing, same = np.zeros((SIZE, SIZE), np.float32), np.eye(SIZE, dtype=np.float32)
    writer.add_tensor("token_embd.weight", embeddings)
    writer.add_tensor("token_types.weight", np.zeros((2, SIZE), np.float32))
    writer.add_tensor("position_embd.weight", np.zeros((POSITIONS, SIZE), np.float32))
    for norm in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        writer.add_tensor(f"{norm}.weight", one)
        writer.add_tensor(f"{norm}.bias", zeros)
    for name, weights in {
        "attn_q": nothing,
        "attn_k": nothing,
        "attn_v": same,
        "attn_output": same,
        "ffn_up": nothing,
        "ffn_down": nothing,
    }.items():
        writer.add_tensor(f"blk.0.{name}.weight", weights)
        writer.add_tensor(f"blk.0.{name}.bias", zeros)
    looks = np.zeros((1, SIZE), np.float32)
    looks[0, 1] = 1
    writer.add_tensor("cls.output.weight", looks)
    writer.add_tensor("cls.output.bias", np.zeros(1, np.float32))


def main(word: str, path: str) -> None:
    """Write the model, serve it with llama.cpp's server, and say where."""
    build_reranker_gguf(word, path)
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = path
    if hasattr(params, "hostnames"):
        params.hostnames = ["127.0.0.1"]
    else:  # before 2026.10
        params.hostname = "127.0.0.1"
    params.port = 0
    params.ui = False
    params.n_parallel = 1
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # Not the interpreter's way: that waits for open connections.


if __name__ == "__main__":
    main(*sys.argv[1:])
