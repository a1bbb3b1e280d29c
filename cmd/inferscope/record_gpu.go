package main

import (
	"context"
	"fmt"
	"time"

	"github.com/inferscope/inferscope/internal/daemon/api"
	"github.com/inferscope/inferscope/internal/format/clierror"
)

// continuous keeps GPU activity recording on, if asked for, until stop is called. The daemon records it while a request
// for a future interval waits, so one request always waits and none is answered. The first error is sent to failed.
func (r *recorder) continuous(ctx context.Context) (stop func(), failed <-chan error) {
	errs := make(chan error, 1)
	if r.gpu != api.GPUContinuous {
		return func() {}, errs
	}
	ctx, stop = context.WithCancel(ctx)
	go r.hold(ctx, errs)
	return stop, errs
}

// overlapOfHolds is for how long two requests wait at a time, so that recording does not stop between them.
const overlapOfHolds = 2 * time.Second

func (r *recorder) hold(ctx context.Context, errs chan<- error) {
	status, err := r.client.Status(ctx)
	if err != nil {
		errs <- err
		return
	}
	each := time.Duration(status.Recorder.Keep * float64(time.Second))
	if each <= 2*overlapOfHolds {
		errs <- clierror.New(clierror.Usage, "start the daemon with a longer --keep", fmt.Errorf("the daemon keeps %s, too little to record GPU activity all the time", each))
		return
	}
	for ctx.Err() == nil {
		one, cancel := context.WithTimeout(ctx, each)
		go func() {
			defer cancel()
			_, err := r.client.Recording(one, r.pid, api.Window{For: each, GPU: api.GPUContinuous})
			if err != nil && one.Err() == nil {
				select {
				case errs <- err:
				default:
				}
			}
		}()
		select {
		case <-ctx.Done():
		case <-time.After(each - overlapOfHolds):
		}
	}
}

// progress returns the text of the progress line.
func (r *recorder) progress() step {
	return func(passed time.Duration) string {
		if r.window > 0 {
			return fmt.Sprintf("recording pid %d: %.0f of %.0f s",
				r.pid, min(passed, r.window).Seconds(), r.window.Seconds())
		}
		return fmt.Sprintf("recording pid %d: %.0f s; Ctrl-C ends it", r.pid, passed.Seconds())
	}
}
