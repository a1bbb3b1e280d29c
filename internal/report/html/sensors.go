package html

import (
	"fmt"
	"strings"

	"github.com/inferscope/inferscope/internal/analysis/sensors"
	"github.com/inferscope/inferscope/internal/format"
	"github.com/inferscope/inferscope/internal/recording"
)

// Bounds of the tracks of sensors. Values are rounded, so that samples which differ by noise make one item.
const (
	maxSensorGap   = 1_000_000_000 // ns: samples further apart do not join
	maxSensorTexts = 1000          // of each GPU
	maxSensorGPUs  = 8             // where no GPU is known to be the target's
	powerStep      = 20_000        // mW
	clockStep      = 15            // MHz, as NVIDIA's clocks step
	trafficStep    = 100_000_000   // bytes a second
)

// readings are what was read of the machine's GPUs.
type readings struct {
	samples map[string][]recording.Sensor // by UUID, ordered by time
	order   []string                      // UUIDs, in the order of the first samples
	xids    map[string][]recording.Xid    // by UUID
	lost    []recording.Xid               // of GPUs of which no sensor was read
	whole   map[string]string             // UUID of a divided GPU by that of its part
}

func readingsOf(m *recording.Meta) readings {
	r := readings{samples: map[string][]recording.Sensor{}, xids: map[string][]recording.Xid{}, whole: map[string]string{}}
	for _, s := range m.Sensors {
		if r.samples[s.UUID] == nil {
			r.order = append(r.order, s.UUID)
		}
		r.samples[s.UUID] = append(r.samples[s.UUID], s)
	}
	if m.Driver == nil {
		return r
	}
	for i := range m.Driver.Parts {
		r.whole[m.Driver.Parts[i].UUID] = m.Driver.Parts[i].GPUUUID
	}
	for _, x := range m.Driver.Xids {
		if r.samples[x.UUID] != nil {
			r.xids[x.UUID] = append(r.xids[x.UUID], x)
		} else {
			r.lost = append(r.lost, x)
		}
	}
	return r
}

// addReadings creates the tracks of one GPU's sensors and errors, and removes them from r.
func (s *scene) addReadings(r *readings, uuid, group string) {
	name := "sensors"
	if whole, ok := r.whole[uuid]; ok {
		uuid, name = whole, "sensors of the whole"
	}
	head := trackHead{Kind: sensorTrack, Name: name, Group: group, Seen: -1}
	s.add(track{head: head, items: s.sensorItems(r.samples[uuid])})
	s.addErrors(r.xids[uuid], group)
	delete(r.samples, uuid)
	delete(r.xids, uuid)
}

// addOtherReadings creates the tracks of GPUs that have no track of work: all errors, and sensors where it is not known
// which GPUs the target uses.
func (s *scene) addOtherReadings(r *readings) {
	known := len(s.in.Timeline.Devices) > 0
	n := 0
	for _, uuid := range r.order {
		list := r.samples[uuid]
		if len(list) == 0 || known && len(r.xids[uuid]) == 0 {
			continue
		}
		if n == maxSensorGPUs {
			s.addErrors(r.xids[uuid], fmt.Sprintf("GPU %d", list[0].GPU))
			continue
		}
		n++
		s.addReadings(r, uuid, fmt.Sprintf("Sensors of GPU %d: %s", list[0].GPU, format.Clean(list[0].Name)))
	}
	s.addErrors(r.lost, "Other GPUs")
}

func (s *scene) addErrors(xids []recording.Xid, group string) {
	tr := track{head: trackHead{Kind: errorTrack, Name: "errors (Xid)", Group: group, Seen: -1}}
	for i := range xids {
		x := &xids[i]
		from, to, ok := s.clip(x.TS, x.TS)
		if !ok {
			continue
		}
		plain := fmt.Sprintf("Xid %d", x.Code)
		text := plain
		if meaning := sensors.XidMeaning(x.Code); meaning != "" {
			text += ", " + meaning
		}
		if x.GPU < 0 {
			text += ", of the GPU at PCI " + format.Clean(x.Bus)
		}
		if x.Text != "" {
			text += ": " + format.Clean(x.Text)
		}
		label := s.labels.of(format.Shorten(text, maxKernel), "xid", plain)
		tr.items = append(tr.items, item{start: from, end: to, label: label, ref: none, src: none})
	}
	s.add(tr)
}

// sensorItems makes an item from each sample to the next, and one of those that say the same.
func (s *scene) sensorItems(list []recording.Sensor) (items []item) {
	texts := map[string]bool{}
	for i := range list[:max(0, len(list)-1)] {
		now, next := &list[i], &list[i+1]
		from, to, ok := s.clip(now.TS, next.TS)
		if !ok || from == to || next.TS-now.TS > maxSensorGap {
			continue
		}
		text, class := sensorText(now)
		if !texts[text] && len(texts) == maxSensorTexts {
			text = "sensors"
		}
		texts[text] = true
		label := s.labels.of(text, class, "sensors")
		if n := len(items); n > 0 && items[n-1].end == from && items[n-1].label == label {
			items[n-1].end = to
			continue
		}
		items = append(items, item{start: from, end: to, label: label, ref: none, src: none})
	}
	return items
}

// sensorText returns the rounded values of a sample and the class of its colour. What the GPU does not tell is left
// out.
func sensorText(s *recording.Sensor) (text, class string) {
	var parts []string
	if s.Power > 0 {
		parts = append(parts, fmt.Sprintf("%d W", (s.Power+powerStep/2)/powerStep*powerStep/1000))
	}
	if s.SMClock > 0 {
		parts = append(parts, fmt.Sprintf("%d MHz", (s.SMClock+clockStep/2)/clockStep*clockStep))
	}
	class = "sensor"
	for _, r := range recording.ClockReasons() {
		if s.Reasons&r.Bit != 0 {
			parts, class = append(parts, "clocks low: "+r.Name), "sensor limited"
		}
	}
	for _, link := range []struct {
		kind   recording.Links
		name   string
		rx, tx uint64
	}{{recording.PCIeLink, "PCIe", s.PCIeRx, s.PCIeTx}, {recording.NVLink, "NVLink", s.NVLinkRx, s.NVLinkTx}} {
		if s.Links&link.kind != 0 {
			most := ""
			if link.kind == recording.PCIeLink && s.Links&recording.PCIeAtMost != 0 {
				most = "at most "
			}
			parts = append(
				parts,
				fmt.Sprintf("%s %s%s in, %s out GB/s", link.name, most, gigabytes(link.rx), gigabytes(link.tx)),
			)
		}
	}
	return strings.Join(parts, ", "), class
}

func gigabytes(n uint64) string {
	return fmt.Sprintf("%.1f", float64((n+trafficStep/2)/trafficStep*trafficStep)/1e9)
}
