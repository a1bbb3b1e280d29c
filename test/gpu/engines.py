"""A small llama for servers, made without a download, and how vLLM serves it.

Usage: engines.py FOLDER LAYERS SIZE [float32|bfloat16]     (writes the model; with random weights of that type)
"""

import os
import subprocess
import sys

WORDS = 4096


def write_model(folder, layers, size, *dtype):
    """Writes the model in a process of its own, which takes PyTorch's memory along when it ends."""
    subprocess.run([sys.executable, os.path.abspath(__file__), folder, str(layers), str(size), *dtype], check=True)


def write_tokenizer(folder):
    """Each token is a word."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for i in range(3, WORDS):
        vocabulary[f"t{i:04d}"] = i
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    fast.save_pretrained(folder)


def write_config(folder, layers, size):
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=size, intermediate_size=4 * size, num_hidden_layers=layers,
        num_attention_heads=size // 64, num_key_value_heads=size // 64, max_position_embeddings=4096,
        bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )
    config.architectures = ["LlamaForCausalLM"]
    config.dtype = "bfloat16"
    config.save_pretrained(folder)


def write_weights(folder, dtype):
    import torch
    from transformers import AutoConfig, GenerationConfig, LlamaForCausalLM

    model = LlamaForCausalLM(AutoConfig.from_pretrained(folder))
    model.generation_config = GenerationConfig()  # no token ends an answer
    model.to(getattr(torch, dtype)).save_pretrained(folder)


def environment(packages):
    """The environment of a server: packages is the folder in which it is, or empty where it is installed."""
    found = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    if packages:
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (packages, os.environ.get("PYTHONPATH"))))
    return found


def vllm(model, port, names, slots, eager=False):
    """The command of vLLM with a batch of so many slots, which knows its model by names."""
    graphs = ["--compilation-config", '{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY"}']
    return [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--load-format", "dummy",
        "--max-model-len", "4096", "--gpu-memory-utilization", "0.4", "--max-num-seqs", str(slots),
        "--host", "127.0.0.1", "--port", str(port), *(["--enforce-eager"] if eager else graphs),
        "--served-model-name", *names,
    ]


def main():
    folder, layers, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    write_tokenizer(folder)
    write_config(folder, layers, size)
    if len(sys.argv) > 4:
        write_weights(folder, sys.argv[4])


if __name__ == "__main__":
    main()
