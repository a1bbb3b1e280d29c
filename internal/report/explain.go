package report

import (
	"fmt"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/report/document"
)

// Explain says of one cause what it means, how it is proven, what refutes it, and what to change.
func Explain(c *cause.Cause) *document.Document {
	d := &document.Document{Title: c.Key + ": " + c.Title}
	var f document.Facts
	f.Add("What it is", c.Means)
	f.Add("What proves it", c.Proves)
	f.Add("What refutes it", c.Refutes)
	f.Add("In the breakdown", groupName(c))
	d.Add(f)
	if len(c.Changes) == 0 {
		return d
	}
	d.Add(document.Heading("What to change"))
	for _, ch := range c.Changes {
		where := ""
		if ch.Where != "" {
			where = ch.Where + ": "
		}
		d.Add(document.Bullets{where + ch.Text})
		if ch.Example != "" {
			d.Add(example(ch.Example))
		}
	}
	return d
}

// Causes lists causes under where they stand in a breakdown.
func Causes(list []cause.Cause) *document.Document {
	d := &document.Document{Title: "Causes that a report can name"}
	for _, g := range groups() {
		t := &document.Table{Columns: []document.Column{document.Left("Cause", 0), document.Left("What it is", 0)}}
		for i := range list {
			if c := &list[i]; groupName(c) == g {
				t.Row(c.Key, c.Title)
			}
		}
		d.AddTable(g, t)
	}
	d.Add(document.Paragraph(fmt.Sprintf("inferscope explain %s describes one in detail.", anyKey(list))))
	return d
}

func anyKey(list []cause.Cause) string {
	for i := range list {
		if list[i].ID == cause.HostSync {
			return list[i].Key
		}
	}
	return "CAUSE"
}

// busyGroup stands for causes that are about time in which the GPU works.
const busyGroup = "GPU working, but below its potential"

// groupName reports where a cause stands in the breakdown.
func groupName(c *cause.Cause) string {
	if c.Group == cause.Requests {
		return "Requests: what holds them up"
	}
	if c.ID.Busy() {
		return busyGroup
	}
	switch c.Group {
	case cause.CPUWork:
		return "GPU idle: CPU preprocessing, the program's own computing"
	case cause.Framework:
		return "GPU idle: framework overhead (launching, synchronizing, copying, allocating)"
	case cause.HostWaits:
		return "GPU idle: the program waits for something other than the GPU"
	case cause.Offered:
		return "GPU idle: nothing to do"
	}
	return "GPU idle: other reasons"
}

// groups are the names that groupName gives, in the order in which they are listed.
func groups() []string {
	var out []string
	for _, g := range []cause.Group{cause.CPUWork, cause.Framework, cause.HostWaits, cause.Offered, cause.Other} {
		out = append(out, groupName(&cause.Cause{Group: g}))
	}
	return append(out, busyGroup, groupName(&cause.Cause{Group: cause.Requests}))
}
