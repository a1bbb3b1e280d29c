"""The workloads' models in plain PyTorch, where transformers, torchvision or tokenizers are not installed. On a CPU
they are small."""

import torch
from torch import nn
from torch.nn import functional

from .base import DEVICE

SMALL = DEVICE == "cpu"


class Tokens:
    """What PlainTokenizer gives, as the tokenizers package has it."""

    def __init__(self, ids):
        self.ids = ids


class PlainTokenizer:
    """Byte pairs, merged greedily in Python: it stands in for the tokenizers package."""

    def __init__(self, texts, vocabulary):
        self.numbers = {bytes([b]): b for b in range(256)}
        for text in texts:
            for word in text.split():
                for end in range(2, len(word) + 1):
                    if len(self.numbers) < vocabulary:
                        self.numbers.setdefault(word[:end].encode(), len(self.numbers))
        self.pieces = {n: piece for piece, n in self.numbers.items()}

    def encode(self, text):
        ids, left = [], text.encode()
        while left:
            size = next(n for n in range(min(len(left), 16), 0, -1) if left[:n] in self.numbers)
            ids.append(self.numbers[left[:size]])
            left = left[size:]
        return Tokens(ids)

    def encode_batch(self, texts):
        return [self.encode(t) for t in texts]

    def decode(self, ids):
        return b"".join(self.pieces.get(i, b"?") for i in ids).decode("utf-8", "replace")


class Block(nn.Module):
    """A transformer's layer. mask is added to the scores; past has the keys and values of earlier tokens."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask=None, past=None):
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.before(x)).split(width, -1)
        )
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        if mask is not None:
            scores = scores + mask
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.after(x)))), (k, v)


class GPT2(nn.Module):
    """GPT-2 of 12 layers, 768 wide; on a CPU 2 layers, 128 wide."""

    def __init__(self, vocabulary=2000):
        super().__init__()
        width, layers, heads = (128, 2, 4) if SMALL else (768, 12, 12)
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def generate(self, ids, max_new_tokens, **_):
        """The most likely next token, again and again."""
        past, new = [None] * len(self.blocks), ids
        for _ in range(max_new_tokens):
            begin = ids.shape[1] - new.shape[1]
            x = self.tokens(new) + self.places(torch.arange(begin, ids.shape[1], device=ids.device))
            length = new.shape[1]
            mask = torch.full((length, length), -1e4, device=x.device, dtype=x.dtype).triu(1) if length > 1 else None
            for i, block in enumerate(self.blocks):
                x, past[i] = block(x, mask, past[i])
            new = (self.norm(x[:, -1]) @ self.tokens.weight.t()).argmax(-1, keepdim=True)
            ids = torch.cat((ids, new), 1)
        return ids


class Bottleneck(nn.Module):
    """Three convolutions around a sum: He and others, Deep Residual Learning, 2015."""

    def __init__(self, inside, width, stride):
        super().__init__()

        def layer(i, o, size, step):
            return nn.Sequential(nn.Conv2d(i, o, size, step, size // 2, bias=False), nn.BatchNorm2d(o))

        self.layers = nn.Sequential(
            layer(inside, width, 1, 1),
            nn.ReLU(),
            layer(width, width, 3, stride),
            nn.ReLU(),
            layer(width, 4 * width, 1, 1),
        )
        self.short = layer(inside, 4 * width, 1, stride) if stride > 1 or inside != 4 * width else nn.Identity()

    def forward(self, x):
        return torch.relu(self.layers(x) + self.short(x))


def resnet50(**_):
    layers, inside = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for i in range(blocks):
            layers.append(Bottleneck(inside, 64 << stage, 2 if i == 0 and stage > 0 else 1))
            inside = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


class Encoded:
    def __init__(self, hidden):
        self.last_hidden_state = hidden


class Encoder(nn.Module):
    """MiniLM's shape, 6 layers, 384 wide; on a CPU 2 layers, 96 wide."""

    def __init__(self, vocabulary=4000):
        super().__init__()
        width, layers = (96, 2) if SMALL else (384, 6)
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.blocks = nn.ModuleList(Block(width, 12) for _ in range(layers))

    def forward(self, input_ids, attention_mask):
        x = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        mask = (attention_mask[:, None, None, :] - 1.0) * 1e4
        for block in self.blocks:
            x, _ = block(x, mask)
        return Encoded(x)
