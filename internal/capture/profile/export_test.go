package profile

import "errors"

// PerThread are options with which events of CPUs count as refused, so that each thread has its own.
func PerThread(o Options) Options {
	o.noCPUs = errors.New("this test is about events of threads")
	return o
}
