package diagnose

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"

	"github.com/inferscope/inferscope/internal/analysis/cause"
	"github.com/inferscope/inferscope/internal/analysis/timeline"
	"github.com/inferscope/inferscope/internal/recording"
	"github.com/inferscope/inferscope/internal/recording/event"
)

// basis is the method by which the time of a kernel with twice the batch is derived.
type basis uint8

const (
	byNothing   basis = iota // it may take as long, or twice as long
	byIntensity              // it reads weights once for the whole batch: arithmetic intensity
	byAttention              // it reads the keys and values of each sequence
	byBlocks                 // whether its blocks find free multiprocessors
	byGrids                  // the same kernel ran with other grids
	bases
)

// basisTexts describe the methods.
var basisTexts = [bases]string{
	byNothing:   "from nothing known",
	byIntensity: "from arithmetic intensity (weights are read once)",
	byAttention: "from keys and values of each sequence",
	byBlocks:    "from blocks and multiprocessors",
	byGrids:     "from the same kernels with other grids",
}

const (
	// leastDoubled is the lowest predicted throughput with twice the batch that is reported.
	leastDoubled = 1.2
	// mostDoubled bounds the activities of a device that are examined.
	mostDoubled = 1 << 18
	// maxShapes bounds the distinct pairs of kernel and grid of a device.
	maxShapes = 4096
	// drawn is how much of its share of the memory's bandwidth a multiprocessor can take while others are idle.
	drawn = 2
	// leastRuns, leastRatio and mostRatio are the least runs with each of two grids, and between what the larger is of
	// the smaller, for their times to say how a kernel scales.
	leastRuns, leastRatio, mostRatio = 3, 1.5, 4
	// leastClock is a clock in Hz that GPUs in use do not fall below.
	leastClock = 1e9
)

var (
	perSequence  = regexp.MustCompile(`(?i)splitkv|paged_attention|batch_?decode|decode_attention|masked_multihead`)
	tileColumns  = regexp.MustCompile(`(?i)(?:nvjet_\w+?_|(?:^|\D))(\d+)x(\d+)_`)
	quantized    = regexp.MustCompile(`(?i)(?:mul_mat_vec_?q|mmvq)\w*(?:<[^,]*,\s*(\d+))?`)
	ofProducts   = regexp.MustCompile(`(?i)gemm|xmma|nvjet|cutlass|conv|matmul|mul_mat`)
	unknownTimes = timeRange{Low: 1, High: 2}
)

// doubling predicts kernels of one device with a batch twice as large.
type doubling struct {
	device  *recording.Device
	kernels []recording.Kernel
	shapes  map[shape]*moments
}

// shape is a kernel with a grid.
type shape struct {
	kernel          int32
	blocks, threads uint64
}

func compareShapes(a, b shape) int {
	return cmp.Or(cmp.Compare(a.kernel, b.kernel), cmp.Compare(a.blocks, b.blocks), cmp.Compare(a.threads, b.threads))
}

// moments holds the sums for mean and variance of durations, in ns.
type moments struct{ n, sum, squares float64 }

func (m *moments) add(x float64) { m.n, m.sum, m.squares = m.n+1, m.sum+x, m.squares+x*x }

func (m *moments) mean() float64 { return m.sum / m.n }

// doubt is two standard errors of the mean, relative to it.
func (m *moments) doubt() float64 {
	mean := m.mean()
	return 2 * math.Sqrt(max(0, m.squares/m.n-mean*mean)/m.n) / mean
}

// times returns the factor by which a kernel takes longer with twice the batch.
func (d *doubling) times(s shape) (timeRange, basis) {
	if s.kernel < 0 || s.blocks == 0 || d.device.SMs == 0 {
		return d.byName(s)
	}
	name := d.name(s.kernel)
	waves := d.waves(s)
	switch {
	case perSequence.MatchString(name):
		if s.blocks >= uint64(d.device.SMs) { // all of the memory's bandwidth is in use
			waves.Low = 2
		}
		return timeRange{Low: waves.Low, High: 2}, byAttention
	case memoryBound.MatchString(name):
		return d.byName(s)
	case ofProducts.MatchString(name): // their grids follow the sizes of weights too
	default:
		if r, ok := d.measured(s); ok {
			return timeRange{Low: clamp(r.Low, waves), High: clamp(r.High, waves)}, byGrids
		}
	}
	if waves == unknownTimes {
		return waves, byNothing
	}
	return waves, byBlocks
}

func clamp(x float64, r timeRange) float64 { return min(max(x, r.Low), r.High) }

func (d *doubling) name(kernel int32) string {
	name := d.kernels[kernel].Name
	return name[:min(len(name), maxKernelName)]
}

// byName is times of a kernel whose grid says nothing. One that reads weights once takes as long where arithmetic runs
// beside the reading, and longer by the additional arithmetic where it does not.
func (d *doubling) byName(s shape) (timeRange, basis) {
	if s.kernel < 0 || !memoryBound.MatchString(d.name(s.kernel)) || perSequence.MatchString(d.name(s.kernel)) {
		return unknownTimes, byNothing
	}
	operations, tensor := intensity(d.name(s.kernel))
	balance := machineBalance(d.device, tensor)
	if balance == 0 {
		return unknownTimes, byNothing
	}
	arithmetic := operations / balance // relative to the reading
	return timeRange{Low: 1, High: (1 + 2*arithmetic) / (1 + arithmetic)}, byIntensity
}

// intensity is how many operations a kernel does for a byte of weights that it reads, at most, by its name; tensor says
// that tensor cores do them.
func intensity(name string) (operations float64, tensor bool) {
	const half, quarter = 2, 0.5 // bytes of a weight
	if m := quantized.FindStringSubmatch(name); m != nil {
		columns, err := strconv.Atoi(m[1])
		if err != nil {
			columns = 8 // as many as such a kernel takes
		}
		return 2 * float64(columns) / quarter, false
	}
	if m := tileColumns.FindStringSubmatch(name); m != nil {
		rows, _ := strconv.Atoi(m[1])
		columns, _ := strconv.Atoi(m[2])
		return 2 * float64(min(rows, columns)) / half, true
	}
	return 2. / half, false // a vector
}

// machineBalance returns the minimum number of operations of a device per byte read; 0 if unknown.
func machineBalance(d *recording.Device, tensor bool) float64 {
	if d.PeakRate == 0 || d.SMs == 0 {
		return 0
	}
	perClock := 256. // of a multiprocessor: 128 multiply-adds in single precision
	capability := d.Major*10 + d.Minor
	switch {
	case capability < 70:
		return 0
	case capability < 86:
		perClock = 128
	}
	if tensor { // in half precision (NVIDIA's white papers of the architectures)
		switch {
		case capability >= 90 && capability < 110:
			perClock = 4096
		case capability == 80:
			perClock = 2048
		case capability >= 86:
			perClock = 512 // of GeForce, which adds up in single precision at half the rate
		default:
			perClock = 1024
		}
	}
	return perClock * leastClock * float64(d.SMs) / float64(d.PeakRate)
}

// waves is times by how many turns the blocks take on the multiprocessors, as many at once on each as its registers and
// threads allow. Blocks that share a multiprocessor may each take longer the more of them there are.
func (d *doubling) waves(s shape) timeRange {
	sms, resident := uint64(d.device.SMs), d.resident(s)
	at := float64(sms * resident)
	turns := math.Ceil(2*float64(s.blocks)/at) / math.Ceil(float64(s.blocks)/at)
	r := timeRange{Low: turns, High: turns}
	switch {
	case 2*s.blocks <= sms: // they find free ones, and share the memory
		r.High = max(1, drawn*2*float64(s.blocks)/float64(sms))
	case resident > 1:
		r.High = 2
	}
	return r
}

// resident returns the maximum number of resident blocks of a kernel per multiprocessor (CUDA C++ Programming Guide,
// "Technical Specifications per Compute Capability"). Shared memory, which is not recorded completely, may allow fewer.
func (d *doubling) resident(s shape) uint64 {
	const registers, threads, blocks = 64 << 10, 2048, 32
	n := uint64(blocks)
	if s.threads > 0 {
		n = min(n, threads/s.threads)
	}
	if k := d.kernels[s.kernel]; k.Registers > 0 && s.threads > 0 {
		n = min(n, registers/(uint64(k.Registers)*s.threads))
	}
	return max(1, n)
}

// measured is times derived from runs of the same kernel with other grids.
func (d *doubling) measured(s shape) (timeRange, bool) {
	m := d.shapes[s]
	var r timeRange
	for other, o := range d.shapes {
		ratio := float64(other.blocks) / float64(s.blocks)
		if other.kernel != s.kernel || other.threads != s.threads || min(m.n, o.n) < leastRuns {
			continue
		}
		if far := max(ratio, 1/ratio); far < leastRatio || far > mostRatio {
			continue
		}
		exponent, doubt := 1/math.Log2(ratio), 1+m.doubt()+o.doubt()
		f := o.mean() / m.mean()
		low, high := math.Pow(f/doubt, exponent), math.Pow(f*doubt, exponent)
		if low > high {
			low, high = high, low
		}
		if r.High == 0 {
			r = timeRange{Low: low, High: high}
		}
		r = timeRange{Low: min(r.Low, low), High: max(r.High, high)}
	}
	return r, r.High > 0
}

// doubled is the time of all kernels with twice the batch, and the shares of it by basis.
type doubled struct {
	times timeRange
	share [bases]float64
}

// doubleKernels predicts the kernels of all devices; false if there are none.
func doubleKernels(t *timeline.Timeline) (out doubled, ok bool) {
	if t.Rec.Meta.GPU == nil {
		return out, false
	}
	total, talks := 0., t.Communicates()
	for i := range t.Devices {
		dev := &t.Devices[i]
		if dev.Info == nil {
			continue
		}
		d := doubling{device: dev.Info, kernels: t.Rec.Meta.GPU.Kernels, shapes: map[shape]*moments{}}
		for j := range t.Activities[dev.First:min(dev.Last, dev.First+mostDoubled)] {
			d.add(t, &t.Activities[int(dev.First)+j])
		}
		for _, s := range slices.SortedFunc(maps.Keys(d.shapes), compareShapes) { // sums depend on the order
			r, by := unknownTimes, byNothing
			if s.kernel < 0 || talks == nil || !talks[s.kernel] {
				r, by = d.times(s)
			}
			sum := d.shapes[s].sum
			out.times.Low += r.Low * sum
			out.times.High += r.High * sum
			out.share[by] += sum
			total += sum
		}
	}
	if total == 0 {
		return out, false
	}
	out.times.Low /= total
	out.times.High /= total
	for i := range out.share {
		out.share[i] /= total
	}
	return out, true
}

// add adds the duration of a kernel.
func (d *doubling) add(t *timeline.Timeline, act *timeline.Activity) {
	if act.Kind != timeline.Kernel {
		return
	}
	e := &t.Rec.Events[act.Event]
	s := shape{kernel: -1, blocks: blocks(e), threads: product(e.Args[3])}
	if i := t.KernelIndex(act); i != timeline.None {
		s.kernel = i
	}
	if d.shapes[s] == nil && len(d.shapes) >= maxShapes {
		s = shape{kernel: -1}
	}
	if d.shapes[s] == nil {
		d.shapes[s] = &moments{}
	}
	d.shapes[s].add(float64(act.End - act.Start))
}

// twiceTheBatch returns the throughput with twice the batch, relative to the current one, and the basis of the
// prediction. Time outside of kernels stays the same at best and doubles at worst. It returns nil for other causes, and
// if almost nothing is certain.
func (a *analysis) twiceTheBatch(id cause.ID) (*timeRange, *Evidence) {
	switch id {
	case cause.SmallBatch, cause.TinyKernels, cause.BandwidthBound:
	default:
		return nil, nil
	}
	d, ok := doubleKernels(a.t)
	if !ok {
		return nil, nil
	}
	r := d.throughput(share(a.total.compute(), a.total.Time))
	if r.Low < leastDoubled {
		return nil, nil
	}
	return &r, &Evidence{Text: d.text()}
}

// throughput returns the throughput of a program whose kernels run for a share of its time.
func (d *doubled) throughput(kernels float64) timeRange {
	return timeRange{
		Low:  2 / (d.times.High*kernels + unknownTimes.High*(1-kernels)),
		High: 2 / (d.times.Low*kernels + unknownTimes.Low*(1-kernels)),
	}
}

// text describes the basis of the prediction.
func (d *doubled) text() string {
	text := fmt.Sprintf("With twice the batch the kernels take %.2f to %.2f times as long", d.times.Low, d.times.High)
	for by := bases; by > 0; by-- {
		if n := d.share[by-1]; n >= 0.005 {
			text += fmt.Sprintf(", %s for %.0f%% of their time", basisTexts[by-1], 100*n)
		}
	}
	return text
}

// product returns the product of a size in three dimensions, packed as in bpf/event.h; 0 if unknown.
func product(packed uint64) uint64 {
	x, y, z := packed&math.MaxUint32, packed>>32&math.MaxUint16, packed>>48
	return x * min(y, 1<<15) * min(z, 1<<15) // without the bounds a damaged event could overflow
}

// blocks returns the number of blocks of a kernel, 0 if unknown.
func blocks(e *event.Event) uint64 { return product(e.Args[2]) }
