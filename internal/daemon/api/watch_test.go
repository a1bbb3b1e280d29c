package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

// addingBackend is a backend that takes targets.
type addingBackend struct {
	*fakeBackend
	amu   sync.Mutex
	asked []WatchRequest
	err   error
}

func (b *addingBackend) Watch(_ context.Context, r WatchRequest) error {
	b.amu.Lock()
	defer b.amu.Unlock()
	b.asked = append(b.asked, r)
	return b.err
}

func (b *addingBackend) Release(_ context.Context, r WatchRequest) error {
	r.PID += 1000 // told from those to be watched
	return b.Watch(context.Background(), r)
}

// TestRelease: likewise of who releases a target.
func TestRelease(t *testing.T) {
	needs.Root(t, "it connects as other users")
	b := &addingBackend{fakeBackend: newFake()}
	socket := serve(t, b, patient())
	must.NoError(t, dial(t, socket).Release(t.Context(), 77))
	must.NoError(t, dialAs(t, socket, otherThread).Release(t.Context(), 78))
	if want := []WatchRequest{{PID: 1077, AnyOwner: true}, {PID: 1078, Owner: otherThread}}; !slices.Equal(
		b.asked,
		want,
	) {
		t.Errorf("asked was %+v, want %+v", b.asked, want)
	}
	b.err = clierror.New(clierror.Permission, "ask as root", errors.New("another has asked for it"))
	wantFault(t, dial(t, socket).Release(t.Context(), 79), clierror.Permission)
}

// TestWatch: the kernel says who asks, also where that user owns nothing yet.
func TestWatch(t *testing.T) {
	needs.Root(t, "it connects as other users")
	b := &addingBackend{fakeBackend: newFake()}
	socket := serve(t, b, patient())
	must.NoError(t, dial(t, socket).Watch(t.Context(), 77))
	must.NoError(t, dialAs(t, socket, otherThread).Watch(t.Context(), 78))
	if want := []WatchRequest{{PID: 77, AnyOwner: true}, {PID: 78, Owner: otherThread}}; !slices.Equal(b.asked, want) {
		t.Errorf("asked was %+v, want %+v", b.asked, want)
	}
	b.err = clierror.New(clierror.Permission, "ask as root", errors.New("it is another's"))
	wantFault(t, dial(t, socket).Watch(t.Context(), 79), clierror.Permission)
	b.err = clierror.New(clierror.General, "wait", fmt.Errorf("%w: 64 targets", ErrBusy))
	wantFault(t, dial(t, socket).Watch(t.Context(), 79), clierror.General)
}

func TestWatchBadRequests(t *testing.T) {
	b := &addingBackend{fakeBackend: newFake()}
	c := dial(t, serve(t, b, patient()))
	for _, path := range []string{pathTargets, pathTargets + "?pid=0", pathTargets + "?pid=x", pathStatus + "?pid=5", PathRecording + "?pid=5"} {
		resp, err := c.ask(t.Context(), "PUT", path)
		if err == nil {
			resp.Body.Close()
		}
		wantFault(t, err, clierror.Usage)
	}
	for _, path := range []string{pathTargets, pathTargets + "?pid=0", pathStatus + "?pid=5"} {
		resp, err := c.ask(t.Context(), "DELETE", path)
		if err == nil {
			resp.Body.Close()
		}
		wantFault(t, err, clierror.Usage)
	}
	if len(b.asked) != 0 {
		t.Errorf("asked was %+v", b.asked)
	}
}
