package html

import (
	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/diagnose"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/format"
)

// document is what the page is told beside its columns. Times are ns after the beginning of the window.
type document struct {
	Title     string      `json:"title"`
	Version   string      `json:"version"`
	Verdict   string      `json:"verdict"`
	Mood      string      `json:"mood"`
	Headline  string      `json:"headline"`
	Notes     []string    `json:"notes"`
	Facts     []Fact      `json:"facts"`
	Length    uint64      `json:"length"`  // ns: of the window
	Quantum   uint64      `json:"quantum"` // ns: the unit of the columns
	Merged    uint64      `json:"merged"`  // ns: what is shorter may be drawn together; 0: all is as it was recorded
	Focus     [][2]uint64 `json:"focus"`   // where all is as it was recorded all the same
	View      []part      `json:"view"`
	Parts     []part      `json:"parts"`
	Devices   []device    `json:"devices"`
	Time      uint64      `json:"time"` // that the parts add up to
	Went      string      `json:"went"` // heading of View
	Findings  []found     `json:"findings"`
	Heading   string      `json:"heading"` // of Findings
	Causes    []row       `json:"causes"`
	Labels    [][2]string `json:"labels"` // text, class
	Tracks    []trackHead `json:"tracks"`
	Hidden    int         `json:"hidden"` // threads that have no track
	Threads   []string    `json:"threads"`
	Spans     [][]uint64  `json:"spans"` // from, to, from, to, ...
	Flames    []flameHead `json:"flames"`
	Frames    [][2]string `json:"frames"` // text, kind
	Tables    []table     `json:"tables"`
	Doubts    []Doubt     `json:"doubts"`
	WhatIf    *WhatIf     `json:"whatif"`
	Iteration uint64      `json:"iteration"` // ns: mean; 0: they do not fill the time, or there are none
}

// part is one part of a breakdown.
type part struct {
	Key   string  `json:"key"`
	Name  string  `json:"name"`
	Time  uint64  `json:"ns"`
	Share float64 `json:"share"`
	Busy  bool    `json:"busy"`
}

type device struct {
	Name  string `json:"name"`
	Parts []part `json:"parts"`
}

// row is a cause, as `inferscope explain` says it.
type row struct {
	Key   string `json:"key"`
	Title string `json:"title"`
	Means string `json:"means"`
}

// found is a Finding with its evidence relative to the window.
type found struct {
	Finding
	Evidence []piece `json:"evidence"`
}

type piece struct {
	Text  string   `json:"text"`
	From  uint64   `json:"from"`
	To    uint64   `json:"to"` // 0: nothing to look at
	Stack []string `json:"stack,omitempty"`
}

type flameHead struct {
	Title string `json:"title"`
	Unit  string `json:"unit"`
	Note  string `json:"note"`
	Nodes int    `json:"n"`
	Left  int    `json:"left"` // frames that are too narrow
}

func newDocument(in Input) *document {
	t := in.Timeline
	d := &document{
		Title: in.Title, Version: in.Version, Verdict: in.Verdict, Mood: in.Mood, Headline: in.Headline,
		Heading: in.Heading, Went: in.Went,
		Notes: in.Notes, Facts: in.Facts, Doubts: in.Doubts, WhatIf: in.WhatIf,
		Length: t.To - t.From, Quantum: quantumOf(t.To - t.From),
		View:      parts(in.Diagnosis.Breakdown.People),
		Parts:     parts(in.Diagnosis.Breakdown.Parts),
		Time:      in.Diagnosis.Breakdown.Time,
		Iteration: in.Iteration, Findings: findings(in), Causes: causes(), Tables: tables(in), Devices: []device{},
	}
	for i := range in.Diagnosis.Devices {
		v := &in.Diagnosis.Devices[i]
		d.Devices = append(d.Devices, device{Name: format.Clean(v.Name), Parts: parts(v.Breakdown.Parts)})
	}
	return d
}

func parts(list []diagnose.Part) []part {
	out := []part{}
	for i := range list {
		if p := &list[i]; p.Time > 0 {
			out = append(out, part{p.Key, format.Clean(p.Name), p.Time, p.Share, p.Busy})
		}
	}
	return out
}

func causes() []row {
	var out []row
	for _, c := range cause.All() {
		out = append(out, row{c.Key, c.Title, c.Means})
	}
	return out
}

// maxEvidence bounds the evidence of one finding on the page; JSON has all.
const maxEvidence = 30

func findings(in Input) []found {
	out := []found{}
	for _, f := range in.Findings {
		one := found{Finding: f, Evidence: []piece{}}
		for _, e := range f.Evidence[:min(len(f.Evidence), maxEvidence)] {
			p := piece{Text: e.Text, Stack: e.Stack}
			if e.To > e.From && e.From >= in.Timeline.From {
				p.From, p.To = e.From-in.Timeline.From, e.To-in.Timeline.From
			}
			one.Evidence = append(one.Evidence, p)
		}
		out = append(out, one)
	}
	return out
}

// addScene enters the timeline.
func (d *document) addScene(s *scene, how detail, tracks [][]drawn) {
	from := s.in.Timeline.From
	d.Merged, d.Hidden = how.bin/4, s.hidden
	d.Labels, d.Tracks, d.Threads, d.Spans, d.Focus = [][2]string{}, []trackHead{}, []string{}, [][]uint64{}, [][2]uint64{}
	for _, l := range s.labels.list {
		d.Labels = append(d.Labels, [2]string{l.text, l.class})
	}
	for i := range s.tracks {
		h := s.tracks[i].head
		h.Items = len(tracks[i])
		d.Tracks = append(d.Tracks, h)
	}
	names := threadNames(s.in)
	for _, k := range s.who {
		d.Threads = append(d.Threads, names(k))
	}
	for _, list := range s.spans {
		d.Spans = append(d.Spans, relative(list, from))
	}
	for _, f := range how.focus {
		d.Focus = append(d.Focus, [2]uint64{f.From - min(f.From, from), f.To - min(f.To, from)})
	}
}

func relative(list timeline.Spans, from uint64) []uint64 {
	out := []uint64{}
	for _, p := range list {
		out = append(out, p.From-min(p.From, from), p.To-min(p.To, from))
	}
	return out
}

func (d *document) addFlames(list []*flame, fr *frames, c *columns) {
	d.Flames, d.Frames = []flameHead{}, [][2]string{}
	for _, f := range list {
		left := f.prune()
		d.Flames = append(d.Flames, flameHead{f.title, f.unit, f.note, len(f.nodes), left})
		c.addFlame(f)
	}
	for _, f := range fr.list {
		d.Frames = append(d.Frames, [2]string{f.text, f.kind})
	}
}
