"""Writes a small llama with random weights and a byte vocabulary as GGUF, for llama.cpp's server: nothing is
downloaded.

Usage: random_gguf.py OUT.gguf [LAYERS [WIDTH]]        needs the package gguf
"""

import sys

import gguf
import numpy

path, layers, width = (
    sys.argv[1],
    int(sys.argv[2]) if len(sys.argv) > 2 else 16,
    int(sys.argv[3]) if len(sys.argv) > 3 else 1024,
)
heads, hidden, context = width // 64, width * 11 // 4, 32768
random = numpy.random.default_rng(0)

w = gguf.GGUFWriter(path, "llama")
w.add_name("random")
w.add_context_length(context)
w.add_embedding_length(width)
w.add_block_count(layers)
w.add_feed_forward_length(hidden)
w.add_head_count(heads)
w.add_head_count_kv(heads)
w.add_rope_dimension_count(64)
w.add_layer_norm_rms_eps(1e-5)
w.add_file_type(gguf.LlamaFileType.MOSTLY_F16)

tokens = [b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % i for i in range(256)]
kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.BYTE] * 256
w.add_tokenizer_model("llama")
w.add_token_list(tokens)
w.add_token_scores([0.0] * len(tokens))
w.add_token_types(kinds)
w.add_bos_token_id(1)
w.add_eos_token_id(2)
w.add_unk_token_id(0)
w.add_vocab_size(len(tokens))


def matrix(name, rows, columns):
    w.add_tensor(
        name, (random.standard_normal((rows, columns), dtype=numpy.float32) / numpy.sqrt(columns)).astype(numpy.float16)
    )


def ones(name):
    w.add_tensor(name, numpy.ones(width, dtype=numpy.float32))


matrix("token_embd.weight", len(tokens), width)
for i in range(layers):
    ones(f"blk.{i}.attn_norm.weight")
    ones(f"blk.{i}.ffn_norm.weight")
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        matrix(f"blk.{i}.{name}.weight", width, width)
    matrix(f"blk.{i}.ffn_gate.weight", hidden, width)
    matrix(f"blk.{i}.ffn_up.weight", hidden, width)
    matrix(f"blk.{i}.ffn_down.weight", width, hidden)
ones("output_norm.weight")
matrix("output.weight", len(tokens), width)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
