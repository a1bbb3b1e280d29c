"""The message classes of a real SGLang, without what else it needs: an unpacked wheel, and stubs for all that its
io_struct imports. Needs msgspec, pyzmq, pydantic and numpy for versions from 0.5.15 on.

Usage: sglang_messages.py WHEEL OUTPUT [msgpack]
Writes one message of each kind, as frames of ZMTP: what internal/capture/request/engine/testdata has is made by this,
from the wheels of PyPI that the names of the files tell (SGLang is Apache-2.0).
"""

import atexit
import dataclasses
import importlib.abc
import importlib.machinery
import os
import pickle
import shutil
import struct
import sys
import tempfile
import types
import zipfile
from array import array

REAL = {
    "sglang.srt.managers.io_struct",
    "sglang.srt.observability.req_time_stats",
    "sglang.srt.sampling.sampling_params",
    "sglang.srt.sampling.watermarking.core",
    "sglang.srt.utils.msgpack_utils",
    "sglang.srt.environ",
}

STUBS = {"sglang", "torch", "transformers", "PIL", "huggingface_hub", "orjson", "requests", "fastapi"}


class Constants(type):
    def __getattr__(cls, name):
        if not name.isupper():
            raise AttributeError(name)
        return None


class Stub(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        body = {"__init__": lambda self, *a, **k: None, "__class_getitem__": classmethod(lambda c, x: c), "__module__": self.__name__}
        setattr(self, name, Constants(name, (), body))
        return getattr(self, name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds some modules of an unpacked wheel, and stubs for whole packages."""

    def __init__(self, root, real, stubs):
        self.root, self.real, self.stubs = root, real, stubs

    def find_spec(self, name, path=None, target=None):
        if name in self.real:
            folder = os.path.join(self.root, *name.split(".")[:-1])
            if found := importlib.machinery.PathFinder.find_spec(name, [folder]):
                return found
        if name.split(".")[0] in self.stubs:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


def unpack(wheel, real, stubs):
    """Makes some modules of a wheel ready for import, until the program ends."""
    root = tempfile.mkdtemp(prefix="wheel-")
    atexit.register(shutil.rmtree, root, True)
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            if name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") in real:
                z.extract(name, root)
    sys.meta_path.insert(0, Finder(root, real, stubs))


def classes(wheel):
    """Returns the module of the messages of a wheel."""
    unpack(wheel, REAL, STUBS)
    try:
        import msgspec

        msgspec.msgpack.Decoder = lambda *a, **k: None  # it looks into types that are stubs here; nothing is decoded
    except ImportError:
        pass
    import sglang.srt.managers.io_struct as messages

    return messages


def make(cls, **fields):
    """Makes a message; what it must have besides is None."""
    if hasattr(cls, "__struct_fields__"):
        names = cls.__struct_fields__
        need = names
    else:
        missing, all_fields = dataclasses.MISSING, dataclasses.fields(cls)
        names = [f.name for f in all_fields]
        need = [f.name for f in all_fields if f.default is missing and f.default_factory is missing]
    return cls(**{**dict.fromkeys(need), **{k: v for k, v in fields.items() if k in names}})


class Kit:
    """Makes the messages of one version."""

    def __init__(self, wheel):
        self.io = classes(wheel)
        self.structs = hasattr(self.io.TokenizedGenerateReqInput, "__struct_fields__")

    def numbers(self, list_of):
        return array("q", list_of) if self.structs else list(list_of)

    def request(self, rid, text, ids):
        from sglang.srt.sampling.sampling_params import SamplingParams

        return make(self.io.TokenizedGenerateReqInput, rid=rid, input_text=text, input_ids=self.numbers(ids),
                    sampling_params=SamplingParams(max_new_tokens=5), return_logprob=False, logprob_start_len=-1,
                    top_logprobs_num=0, stream=True)

    def reason(self, kind, n):
        return None if kind is None else {"type": kind, "length" if kind == "length" else "matched": n}

    def step(self, rows, **more):
        """rows: rid, finish, ids, prompt, completion, cached, retractions, times."""
        cls = getattr(self.io, "BatchTokenIDOutput", None) or self.io.BatchTokenIDOut
        rid, finish, ids, prompt, completion, cached, retracted, times = map(list, zip(*rows))
        told = [t for t in times if t]
        return make(
            cls, rids=rid, http_worker_ipcs=[None] * len(rid), vids=[0] * len(rid), decoded_texts=[""] * len(rid),
            finished_reasons=[self.reason(f, n) for f, n in zip(finish, completion)], decode_ids=[self.numbers(i) for i in ids],
            read_offsets=[5] * len(rid), skip_special_tokens=[True] * len(rid), spaces_between_special_tokens=[True] * len(rid),
            no_stop_trim=[False] * len(rid), prompt_tokens=prompt, reasoning_tokens=[0] * len(rid), completion_tokens=completion,
            cached_tokens=cached, spec_verify_ct=[], retraction_counts=retracted,
            queue_time=[t and t[1] - t[0] for t in times] if told else None,
            forward_entry_time=[t and t[1] for t in times] if told else None,
            time_stats=self.stats(times) if told else None, **more,
        )

    def stats(self, times):
        """Objects as the scheduler sends them where metrics are on."""
        try:
            from sglang.srt.observability.req_time_stats import SchedulerReqTimeStats as Stats
            out = []
            for t in times:
                s = Stats(enable_metrics=True)
                if t:
                    s.wait_queue_entry_time, s.forward_entry_time = t
                out.append(s)
            pickle.dumps(out)
        except Exception:  # this version has none
            return None
        return self.io.wrap_as_pickle(out) if hasattr(self.io, "wrap_as_pickle") else out

    def text(self, rows):
        """rows: rid, finish, text, completion."""
        cls = getattr(self.io, "BatchStrOutput", None) or self.io.BatchStrOut
        rid, finish, text, completion = map(list, zip(*rows))
        return make(cls, rids=rid, http_worker_ipcs=[None] * len(rid), output_strs=text, prompt_tokens=[1] * len(rid),
                    finished_reasons=[self.reason(f, n) for f, n in zip(finish, completion)], completion_tokens=completion)

    def load(self, running, waiting):
        cls = getattr(self.io, "GetLoadReqOutput", None)
        return cls and make(cls, dp_rank=0, num_reqs=running + waiting, num_waiting_reqs=waiting, num_tokens=7, ts_tic=1.0)

    def encode(self, message, msgpack=False):
        return self.io.msgpack_encode(message) if msgpack else pickle.dumps(message, pickle.HIGHEST_PROTOCOL if self.structs else 4)


def frame(body, more=False):
    """One frame of ZMTP; more: the message goes on in the next one."""
    if len(body) < 256:
        return bytes([more, len(body)]) + body
    return bytes([2 | more]) + struct.pack(">Q", len(body)) + body


def main():
    kit, msgpack = Kit(sys.argv[1]), len(sys.argv) > 3
    if msgpack:
        kit.io._USE_PICKLE_IPC = False
    rows = [
        ("r-1", None, [31337, 31338], 10, 1, 4, 0, (100.25, 100.5)),
        ("r-2", "length", [31337], 20, 5, 0, 1, (99.0, 100.0)),
        ("r-3", "abort", [], 30, 2, 0, 0, (99.0, 100.0)),
    ]
    more = {"load": kit.load(3, 7)}
    with open(sys.argv[2], "wb") as f:
        for m in (
            kit.request("r-1", "canary-4711", [31337] * 10),
            kit.step(rows, **more),
            kit.text([("r-1", None, "secret", 1), ("r-2", "length", "secret", 5)]),
            make(kit.io.AbortReq, rid="r-3"),
        ):
            f.write(frame(kit.encode(m, msgpack)))


if __name__ == "__main__":
    main()
