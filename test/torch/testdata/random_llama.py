"""Writes a small llama with random weights, and a tokenizer in which each token is a word: nothing is downloaded.

Usage: random_llama.py FOLDER
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../gpu"))
import vllm_check  # noqa: E402
from transformers import AutoConfig, GenerationConfig, LlamaForCausalLM  # noqa: E402

folder = sys.argv[1]
vllm_check.make_model(folder, 2, 128)
model = LlamaForCausalLM(AutoConfig.from_pretrained(folder))
model.generation_config = GenerationConfig()  # no token ends an answer
model.save_pretrained(folder)
