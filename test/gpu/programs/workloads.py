"""Inference as people run it, with random weights: GPT-2, ResNet-50, sentence embeddings. Each function returns step().

The models are those of transformers and torchvision; where these are missing, models.py has plain ones.
"""

import torch

from . import models
from .base import DEVICE, sentences, tokenizer


def gpt2():
    """Generates 50 tokens of a prompt of text: tokenization, a copy in, an eager decode, a copy out."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel

        model = GPT2LMHeadModel(GPT2Config())
    except ImportError:
        model = models.GPT2()
    model = model.to(DEVICE).eval()
    model = model.half() if DEVICE == "cuda" else model
    tok, prompt = tokenizer(), sentences(1, 40)[0]

    def step():
        ids = torch.tensor([tok.encode(prompt).ids[:64]]).to(DEVICE)
        with torch.no_grad():
            out = model.generate(ids, max_new_tokens=50, min_new_tokens=50, do_sample=False, pad_token_id=0)
        tok.decode(out[0].cpu().tolist())

    return step


def resnet50(batch=4):
    """Classifies a batch that is on the GPU already."""
    try:
        from torchvision.models import resnet50 as make
    except ImportError:
        make = models.resnet50
    model = make(weights=None).to(DEVICE).eval()
    side = 224 if DEVICE == "cuda" else 32
    x = torch.randn(batch, 3, side, side, device=DEVICE)

    def step():
        with torch.no_grad():
            model(x).argmax(1).cpu()

    return step


def minilm(count=32):
    """Embeds sentences with an encoder of MiniLM's shape: 6 layers, 384 wide."""
    try:
        from transformers import BertConfig, BertModel

        model = BertModel(
            BertConfig(
                hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536, vocab_size=4000
            )
        )
    except ImportError:
        model = models.Encoder()
    model, tok, texts = model.to(DEVICE).eval(), tokenizer(), sentences(count, 40)

    def step():
        ids = [e.ids[:128] for e in tok.encode_batch(texts)]
        longest = max(map(len, ids))
        inputs = torch.tensor([i + [0] * (longest - len(i)) for i in ids]).to(DEVICE)
        mask = torch.tensor([[1] * len(i) + [0] * (longest - len(i)) for i in ids]).to(DEVICE)
        with torch.no_grad():
            out = model(input_ids=inputs, attention_mask=mask).last_hidden_state
        (out * mask.unsqueeze(-1)).sum(1).cpu()

    return step


WORKLOADS = {"gpt2": gpt2, "resnet50": resnet50, "resnet50-batch-32": lambda: resnet50(32), "minilm": minilm}
