package sched

import (
	"github.com/cilium/ebpf"

	"github.com/inferscope/inferscope/bpf"
)

// AsBefore62 makes the programs read as they do before Linux 6.2: by calls of helpers.
func AsBefore62(o Options) Options {
	o.noCast = true
	return o
}

// Room is how far the numbers of threads are apart that share a place.
func Room(s *Source) uint32 { return s.kernel.room() }

// Known returns how many threads there is a state of.
func Known(s *Source) (int, error) {
	n := 0
	err := s.kernel.threads(func(*bpf.SchedThreadState) { n++ })
	return n, err
}

// Programs returns the programs that every switch and every wake-up of the machine runs.
func Programs(s *Source) (atSwitch, atWaking *ebpf.Program) {
	return s.kernel.objects.SchedSwitch, s.kernel.objects.SchedWaking
}

// Detach detaches the programs until attach is called. Their state stays.
func Detach(s *Source) (attach func() error, err error) {
	return s.kernel.attach, s.kernel.detach()
}

// Missed returns how many wake-ups and switches were not seen.
func Missed(s *Source) uint64 { return s.kernel.missed() }

// Deaf lets the program that runs at wake-ups run no more.
func Deaf(s *Source) error {
	return s.kernel.watchWakers(false)
}

// ClockSamples returns how many times of the kernel's own account were compared with those of events.
func ClockSamples(s *Source) (n uint64, err error) {
	err = s.kernel.objects.ClockSamples.Get(&n)
	return n, err
}
