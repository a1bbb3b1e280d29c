"""Prints what HolisticTraceAnalysis says of a Kineto trace, as JSON. Times are in microseconds."""

import json
import sys

from hta.trace_analysis import TraceAnalysis

analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
temporal = analysis.get_temporal_breakdown(visualize=False)
row = temporal.iloc[0]
idle, _ = analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
launches = analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)
print(
    json.dumps(
        {
            "idle_us": float(row["idle_time(us)"]),
            "kernel_us": float(row["kernel_time(us)"]),
            "idle_categories": sorted(set(idle["idle_category"])),
            "kernel_rows": sum(len(t) for t in kernels),
            "launches": int(len(launches[0])),
        }
    )
)
