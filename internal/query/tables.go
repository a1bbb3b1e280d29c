// Package query answers SQL about many recordings, on the disk or uploaded to an object store, with the program duckdb.
//
// Recordings are laid out below a temporary folder under numbers, so that no name that anybody else chose becomes a
// part of SQL, and views are defined on their files. DuckDB can read that folder, and write nothing.
package query

import (
	"github.com/inferscope/inferscope/internal/analysis"
	"github.com/inferscope/inferscope/internal/analysis/threads"
	"github.com/inferscope/inferscope/internal/fleet"
	"github.com/inferscope/inferscope/internal/recording"
)

// Names of the small tables that Tables makes.
const (
	findingsTable = "findings"
	gpuTable      = "gpu_time"
	threadsTable  = "thread_times"
)

// Tables makes the small tables of a recording: what a report of it finds, where the time of GPUs went, and what
// threads did.
func Tables(rec *recording.Recording, r fleet.Row) ([]fleet.SmallTable, error) {
	result := analysis.Run(rec)
	found, err := fleet.Table(findingsTable, findings(result, r))
	if err != nil {
		return nil, err
	}
	gpus, err := fleet.Table(gpuTable, parts(result, r))
	if err != nil {
		return nil, err
	}
	times, err := fleet.Table(threadsTable, threadTimes(result, r))
	if err != nil {
		return nil, err
	}
	return []fleet.SmallTable{found, gpus, times}, nil
}

func findings(result *analysis.Result, r fleet.Row) []fleet.FindingRow {
	d := result.Diagnosis
	out := []fleet.FindingRow{}
	for i := range d.Findings {
		f := &d.Findings[i]
		out = append(out, fleet.FindingRow{
			Recording: r.Recording, PID: r.PID, From: r.From, Verdict: string(d.Verdict), Cause: f.Cause,
			Title: f.Title,
			Cost:  int64(f.Cost), Share: f.Share, Confidence: f.Confidence, Place: f.Place,
		})
	}
	if len(out) == 0 { // the verdict alone
		out = append(out,
			fleet.FindingRow{Recording: r.Recording, PID: r.PID, From: r.From, Verdict: string(d.Verdict)})
	}
	return out
}

// noDevice is the device of a target that uses no GPU.
const noDevice = -1

func parts(result *analysis.Result, r fleet.Row) []fleet.PartRow {
	d := result.Diagnosis
	out := []fleet.PartRow{}
	row := fleet.PartRow{Recording: r.Recording, PID: r.PID, From: r.From, Device: noDevice}
	for i := range d.Devices {
		device := &d.Devices[i]
		row.PID, row.Device, row.Name = int64(device.PID), int64(device.ID), device.Name
		row.Watched = int64(device.Breakdown.Time)
		for k := range device.Breakdown.Parts {
			p := &device.Breakdown.Parts[k]
			row.Part, row.Busy, row.Time = p.Key, p.Busy, int64(p.Time)
			out = append(out, row)
		}
	}
	if len(d.Devices) > 0 {
		return out
	}
	row.Watched = int64(d.Breakdown.Time)
	for i := range d.Breakdown.Parts {
		p := &d.Breakdown.Parts[i]
		row.Part, row.Busy, row.Time = p.Key, p.Busy, int64(p.Time)
		out = append(out, row)
	}
	return out
}

func threadTimes(result *analysis.Result, r fleet.Row) []fleet.ThreadRow {
	out := []fleet.ThreadRow{}
	for i := range result.Threads {
		t := &result.Threads[i]
		out = append(out, fleet.ThreadRow{
			Recording: r.Recording, PID: int64(t.PID), TID: int64(t.TID), From: r.From, Thread: t.Name,
			Running: int64(t.Totals[threads.Running]), Runnable: int64(t.Totals[threads.Runnable]),
			Blocked: int64(t.Totals[threads.Blocked]), Voluntary: int64(t.Switches.Voluntary),
			Involuntary: int64(t.Switches.Involuntary), Migrations: int64(t.Switches.Migrations),
		})
	}
	return out
}
