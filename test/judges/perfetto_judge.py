"""Decodes a Perfetto trace with the published schema and prints what is in it, as JSON.

Every message must be known to the schema to its last field, every slice must end, every number of interned data must
be defined before it is used, and no track may be unknown.
"""

import collections
import json
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

BEGIN, END, COUNTER = 1, 2, 4


def unknown(message, path=""):
    """Returns the paths of fields that the schema does not have: they vanish when a message is written again."""
    copy = type(message)()
    copy.CopyFrom(message)
    copy.DiscardUnknownFields()
    return [path or message.DESCRIPTOR.name] if copy.ByteSize() != message.ByteSize() else []


trace = schema.Trace()
with open(sys.argv[1], "rb") as f:
    trace.ParseFromString(f.read())
problems, counts, tracks = [], collections.Counter(), {}
names, categories, notes, stages, contexts = {}, {}, {}, {}, {}
open_slices, flows = collections.defaultdict(list), collections.defaultdict(list)
requests = collections.defaultdict(list)  # slices of requests, by track: name, beginning, end, depth
problems += unknown(trace)
events = []
for number, packet in enumerate(trace.packet):
    data = packet.interned_data
    for table, rows in (
        (names, data.event_names),
        (categories, data.event_categories),
        (notes, data.debug_annotation_names),
        (stages, data.gpu_specifications),
        (contexts, data.graphics_contexts),
    ):
        for row in rows:
            table[row.iid] = row
    kind = packet.WhichOneof("data")
    counts[kind or "none"] += 1
    if kind == "track_descriptor":
        d = packet.track_descriptor
        if d.parent_uuid and d.parent_uuid not in tracks:
            problems.append(f"packet {number}: parent {d.parent_uuid} comes later")
        tracks[d.uuid] = d
    elif kind == "track_event":
        e = packet.track_event
        if e.track_uuid not in tracks:
            problems.append(f"packet {number}: track {e.track_uuid} is unknown")
        if e.type == BEGIN and (e.name_iid not in names or any(c not in categories for c in e.category_iids)):
            problems.append(f"packet {number}: a name is not defined")
        if any(a.name_iid not in notes for a in e.debug_annotations):
            problems.append(f"packet {number}: an annotation is not defined")
        events.append((packet.timestamp, number, e))
    elif kind == "gpu_render_stage_event":
        e = packet.gpu_render_stage_event
        if e.stage_iid not in stages or e.hw_queue_iid not in stages or e.context not in contexts:
            problems.append(f"packet {number}: a stage, queue or context is not defined")
        if not e.launch.grid_size.x or not e.launch.workgroup_size.x:
            problems.append(f"packet {number}: a kernel without its launch")
        counts["gpu_ns"] += e.duration
for ts, number, e in sorted(events, key=lambda x: (x[0], x[1])):
    if e.type == BEGIN:
        counts["slices"] += 1
        counts["slices of " + categories[e.category_iids[0]].name] += 1
        open_slices[e.track_uuid].append(ts)
        if categories[e.category_iids[0]].name.startswith("request"):
            requests[e.track_uuid].append([names[e.name_iid].name, ts, 0, len(open_slices[e.track_uuid])])
        for flow in e.flow_ids:
            flows[flow].append("s")
        for flow in e.terminating_flow_ids:
            flows[flow].append("f")
    elif e.type == END:
        if not open_slices[e.track_uuid]:
            problems.append(f"packet {number}: an end without a beginning")
        else:
            depth = len(open_slices[e.track_uuid])
            open_slices[e.track_uuid].pop()
            for slice in requests.get(e.track_uuid, []):
                if slice[3] == depth and slice[2] == 0:
                    slice[2] = ts
    elif e.type == COUNTER:
        counts["counter values"] += 1
problems += [f"track {t}: {len(s)} slices never end" for t, s in open_slices.items() if s]
counts["flows whole"] = sum(1 for f in flows.values() if "s" in f and "f" in f)
counts["flows"] = len(flows)
idle = [d.uuid for d in tracks.values() if d.name == "why it is idle"]
print(
    json.dumps(
        {
            "problems": problems[:20],
            "counts": counts,
            "tracks": len(tracks),
            "idle_tracks": len(idle),
            "requests": list(requests.values()),
        }
    )
)
