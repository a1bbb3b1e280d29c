#!/usr/bin/env python3
"""What CUPTI says of devices, contexts and streams to somebody who comes late.

A process makes a context and two streams, works, and only then subscribes and turns the kinds 8 (device), 9 (context)
and
37 (stream) on; then it makes a third stream. Printed: which records came, of which objects, and what a call costs with
the kinds on and off. The agent records none of the three (docs/gpu-agent.md): this is the check of the reason.

    python3 test/gpu/info_kinds.py --cupti .../nvidia/cu13/lib/libcupti.so.13
"""

import argparse
import ctypes
import struct
import time

DEVICE, CONTEXT, STREAM, MEMSET = 8, 9, 37, 2
NON_BLOCKING, BUFFER = 1, 1 << 20

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--cuda", default="libcuda.so.1")
p.add_argument("--cupti", default="libcupti.so.13")
args = p.parse_args()
cuda, cupti = ctypes.CDLL(args.cuda), ctypes.CDLL(args.cupti)


def must(code, what):
    if code:
        raise SystemExit(f"{what}: error {code}")


REQUEST = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)
buffers, records = [], []


@REQUEST
def request(buffer, size, most):
    memory = ctypes.create_string_buffer(BUFFER + 8)
    buffers.append(memory)
    buffer[0], size[0], most[0] = (ctypes.addressof(memory) + 7) & ~7, BUFFER, 0


@COMPLETE
def complete(_context, _stream, buffer, _size, valid):
    record = ctypes.c_void_p()
    while cupti.cuptiActivityGetNextRecord(ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)) == 0:
        records.append(ctypes.string_at(record.value, 144))


@CALLBACK
def nothing(*_):
    pass


def stream(flags, priority):
    s = ctypes.c_void_p()
    must(cuda.cuStreamCreateWithPriority(ctypes.byref(s), flags, priority), "cuStreamCreateWithPriority")
    return s


def work(streams, memory, rounds=2000):
    """Microseconds that a call takes."""
    began = time.perf_counter()
    for i in range(rounds):
        must(cuda.cuMemsetD8Async(memory, i & 255, ctypes.c_size_t(4096), streams[i % len(streams)]), "cuMemsetD8Async")
    must(cuda.cuCtxSynchronize(), "cuCtxSynchronize")
    return 1e6 * (time.perf_counter() - began) / rounds


def describe(record):
    kind = struct.unpack_from("<I", record)[0]
    if kind == DEVICE:
        name = ctypes.string_at(struct.unpack_from("<Q", record, 136)[0]).decode()
        kilobytes, memory = struct.unpack_from("<QQ", record, 8)
        device, sms = struct.unpack_from("<I", record, 112)[0], struct.unpack_from("<I", record, 44)[0]
        return f"device {device}: {name}, {memory >> 30} GiB, {kilobytes / 1e6:.0f} GB/s, {sms} SMs"
    if kind == CONTEXT:
        context, device, api, null = struct.unpack_from("<IIHH", record, 4)
        return f"context {context} of device {device}, api {api}, its default stream is {null}"
    if kind == STREAM:
        context, number, priority, flag = struct.unpack_from("<IIiI", record, 4)
        return f"stream {number} of context {context}: priority {priority}, flag {flag} (1 default, 2 non-blocking, 3 null)"
    return None


must(cuda.cuInit(0), "cuInit")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
must(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
must(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)), "cuMemAlloc")
streams = [stream(0, 0), stream(NON_BLOCKING, -1)]
work(streams, memory)
print(f"alone: {work(streams, memory):.2f} us a call")

subscriber = ctypes.c_void_p()
must(cupti.cuptiSubscribe(ctypes.byref(subscriber), nothing, None), "cuptiSubscribe")
must(cupti.cuptiActivityRegisterCallbacks(request, complete), "cuptiActivityRegisterCallbacks")
must(cupti.cuptiActivityEnable(MEMSET), "cuptiActivityEnable(memset)")
work(streams, memory)
print(f"memset records: {work(streams, memory):.2f} us a call")
for kind in (DEVICE, CONTEXT, STREAM):
    print(f"kind {kind} on: {cupti.cuptiActivityEnable(kind)} (0 is success)")
work(streams, memory)
print(f"memset records and the three kinds: {work(streams, memory):.2f} us a call")
made_late = stream(NON_BLOCKING, 0)
work([*streams, made_late], memory, 30)
must(cupti.cuptiActivityFlushAll(1), "cuptiActivityFlushAll")
said = [d for d in map(describe, records) if d]
print("streams made before: 2, made after: 1; records:")
print("\n".join(f"  {d}" for d in said) or "  none")
must(cupti.cuptiUnsubscribe(subscriber), "cuptiUnsubscribe")
must(cupti.cuptiFinalize(), "cuptiFinalize")
