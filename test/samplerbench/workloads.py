"""Runs one workload in the main thread for ever: the rows of the sampler's table."""
import io
import sys


def pure():
    return lambda: sum(i * i for i in range(1000))


def json_():
    import json
    rows = {str(i): [i] * 20 for i in range(200)}
    return lambda: json.loads(json.dumps(rows))


def numpy_():
    import numpy as np
    a = np.random.rand(300, 300).astype("f")
    return lambda: a @ a


def tokenizers():
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel()
    lines = ["the quick brown fox jumps over %d dogs" % i for i in range(2000)]
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=2000, show_progress=False))
    text = "the quick brown fox jumps over 17 dogs " * 200
    return lambda: t.encode(text)


def pil():
    import numpy as np
    from PIL import Image
    b = io.BytesIO()
    Image.fromarray((np.random.rand(512, 512, 3) * 255).astype("u1")).save(b, "JPEG")
    data = b.getvalue()
    return lambda: Image.open(io.BytesIO(data)).convert("RGB").resize((224, 224))


def opencv():
    import cv2
    import numpy as np
    cv2.setNumThreads(1)
    data = cv2.imencode(".jpg", (np.random.rand(512, 512, 3) * 255).astype("u1"))[1]
    return lambda: cv2.resize(cv2.imdecode(data, 1), (224, 224))


def conv2d():
    import torch
    torch.set_num_threads(1)
    layer, x = torch.nn.Conv2d(32, 32, 3).eval(), torch.randn(1, 32, 64, 64)

    def step():
        with torch.inference_mode():
            return layer(x)
    return step


def transformer():
    import torch
    torch.set_num_threads(1)
    layer, x = torch.nn.TransformerEncoderLayer(256, 8, batch_first=True).eval(), torch.randn(4, 64, 256)

    def step():
        with torch.inference_mode():
            return layer(x)
    return step


def main():
    step = {"pure": pure, "json": json_, "numpy": numpy_, "tokenizers": tokenizers, "pil": pil,
            "opencv": opencv, "conv2d": conv2d, "transformer": transformer}[sys.argv[1]]()
    step()
    print("ready", flush=True)
    while True:
        step()


main()
