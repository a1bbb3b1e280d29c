"""The message classes and the encoder of a real vLLM, without what else it needs: an unpacked wheel, and stubs. Needs
msgspec, pyzmq, pydantic, cloudpickle and numpy.

Usage: vllm_messages.py WHEEL OUTPUT
Writes a request, a step and an abort, as frames of ZMTP.
"""

import sys

from sglang_messages import frame, make, unpack

REAL = {
    "vllm.envs",
    "vllm.sampling_params",
    "vllm.v1.engine",
    "vllm.v1.serial_utils",
    "vllm.v1.metrics.stats",
}


def main():
    unpack(sys.argv[1], REAL, {"vllm", "torch"})
    import vllm.v1.engine as engine
    from vllm.v1.metrics.stats import SchedulerStats
    from vllm.v1.serial_utils import MsgpackEncoder

    def event(kind, at):
        return engine.EngineCoreEvent(engine.EngineCoreEventType[kind], at)

    request = make(
        engine.EngineCoreRequest, request_id="r-1", prompt_token_ids=[31337] * 10, arrival_time=1.5, client_index=0,
        current_wave=0, priority=0,
    )
    step = engine.EngineCoreOutputs(
        engine_index=1,
        outputs=[
            engine.EngineCoreOutput("r-1", [31337], events=[event("QUEUED", 100.25), event("SCHEDULED", 100.5)]),
            engine.EngineCoreOutput("r-2", [31337, 31338], finish_reason=engine.FinishReason.LENGTH, events=[event("PREEMPTED", 99.0)]),
            engine.EngineCoreOutput("r-3", [], finish_reason=engine.FinishReason.ABORT),
        ],
        scheduler_stats=SchedulerStats(num_running_reqs=3, num_waiting_reqs=7, kv_cache_usage=0.5),
        timestamp=101.0,
    )
    kinds, encode = engine.EngineCoreRequestType, MsgpackEncoder().encode
    with open(sys.argv[2], "wb") as f:
        for kind, message in ((kinds.ADD, request), (None, step), (kinds.ABORT, ["r-3"])):
            parts = [bytes(p) for p in encode(message)]
            if kind is not None:
                parts.insert(0, kind.value)
            for i, part in enumerate(parts):
                f.write(frame(part, more=i + 1 < len(parts)))


if __name__ == "__main__":
    main()
