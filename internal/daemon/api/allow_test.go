package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/inferscope/inferscope/internal/format/clierror"
	"github.com/inferscope/inferscope/internal/testkit/must"
	"github.com/inferscope/inferscope/internal/testkit/needs"
)

func allowing(t *testing.T, text string) Allow {
	t.Helper()
	a, err := ParseAllow(text)
	must.NoError(t, err)
	return a
}

func TestParseAllow(t *testing.T) {
	for _, tt := range []struct {
		text   string
		admits []peer
		not    []peer
	}{
		{"none", nil, []peer{{uid: alice}}},
		{"", nil, []peer{{uid: alice}}},
		{"all", []peer{{uid: alice}}, nil},
		{"40001", []peer{{uid: alice}}, []peer{{uid: bob, groups: []uint32{alice}}}},
		{"40001, @777", []peer{{uid: alice}, {uid: bob, groups: []uint32{5, 777}}}, []peer{{uid: bob, groups: []uint32{5}}}},
		{"nobody", []peer{{uid: 65534}}, []peer{{uid: alice}}},
		{"@root", []peer{{uid: bob, groups: []uint32{0}}}, []peer{{uid: bob}}},
	} {
		a := allowing(t, tt.text)
		for _, p := range tt.admits {
			if !a.admits(p) {
				t.Errorf("%q keeps %+v out", tt.text, p)
			}
		}
		for _, p := range tt.not {
			if a.admits(p) {
				t.Errorf("%q admits %+v", tt.text, p)
			}
		}
	}
	if _, err := ParseAllow(DefaultAllow); err != nil {
		t.Errorf("the default where there is no such group: %v", err)
	}
	for _, text := range []string{"nosuchuser-x", "@nosuchgroup-x", "alice,,bob", "@", "-1", "4294967296"} {
		_, err := ParseAllow(text)
		wantFault(t, err, clierror.Usage)
	}
}

// TestWhoMayAddTargets: no user by default, then only those who are named, by the groups of their connection.
func TestWhoMayAddTargets(t *testing.T) {
	needs.Root(t, "it connects as other users")
	const group = 40777
	for _, tt := range []struct {
		allow  string
		uid    uintptr
		groups []uint32
		may    bool
	}{
		{"", alice, nil, false},
		{"all", alice, nil, true},
		{"40001", alice, nil, true},
		{"40001", bob, nil, false},
		{"@40777", bob, []uint32{group}, true},
		{"@40777", bob, []uint32{group + 1}, false},
		{"none", 0, nil, true},
	} {
		b := &addingBackend{fakeBackend: newFake()}
		socket := serveWith(t, b, patient(), func(s *Server) { s.SetAllow(allowing(t, tt.allow)) })
		err := dialAs(t, socket, tt.uid, tt.groups...).Watch(t.Context(), 77)
		if tt.may != (err == nil) || tt.may != (len(b.asked) == 1) {
			t.Errorf("--allow-users %q, user %d of groups %v: %v, the daemon was asked %v",
				tt.allow, tt.uid, tt.groups, err, b.asked)
		}
		if !tt.may {
			wantFault(t, err, clierror.Permission)
		}
	}
	// A server that was told nothing admits nobody.
	b := &addingBackend{fakeBackend: newFake()}
	wantFault(t, dialAs(t, serveWith(t, b, patient(), func(*Server) {}), alice).Watch(t.Context(), 77),
		clierror.Permission)
}

// TestManyGroups: the kernel is asked again where a peer is in more groups than there was room for.
func TestManyGroups(t *testing.T) {
	needs.Root(t, "it connects as other users")
	var groups []uint32
	for i := range uint32(3000) {
		groups = append(groups, 50000+i)
	}
	b := &addingBackend{fakeBackend: newFake()}
	socket := serveWith(t, b, patient(), func(s *Server) { s.SetAllow(allowing(t, "@52999")) })
	if err := dialAs(t, socket, alice, groups...).Watch(t.Context(), 77); err != nil {
		t.Error(err)
	}
}

// TestChangesAreNoted: each with who asked for it and what became of it, the refused ones too.
func TestChangesAreNoted(t *testing.T) {
	needs.Root(t, "it connects as other users")
	var mu sync.Mutex
	var noted []string
	b := &addingBackend{fakeBackend: newFake()}
	socket := serveWith(t, b, patient(), func(s *Server) {
		s.SetAllow(allowing(t, "40001"))
		s.OnChange(func(c Change) {
			mu.Lock()
			defer mu.Unlock()
			noted = append(noted, fmt.Sprintf("%d %v %v %s %d: %v",
				c.UID, c.PID == int32(os.Getpid()), c.Comm != "", c.What, c.Target, c.Err != nil))
		})
	})
	ctx := t.Context()
	_ = dialAs(t, socket, alice).Watch(ctx, 77)
	_ = dialAs(t, socket, bob).Watch(ctx, 78)
	b.err = errors.New("it is gone")
	_ = dial(t, socket).Release(ctx, 79)
	_, _ = dialAs(t, socket, alice).Recording(ctx, alicePID, Window{For: time.Millisecond, GPU: GPUContinuous})
	_, _ = dialAs(t, socket, alice).Recording(ctx, alicePID, Window{})
	want := []string{
		"40001 true true watch 77: false",
		"40002 true true watch 78: true",
		"0 true true release 79: true",
		"40001 true true record GPU activity all the time for 1ms 100: false",
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(noted, want) {
		t.Errorf("noted was\n%s\nwant\n%s", strings.Join(noted, "\n"), strings.Join(want, "\n"))
	}
}

// TestChangesAreLimited: a user cannot flood the log, nor change targets without end.
func TestChangesAreLimited(t *testing.T) {
	needs.Root(t, "it connects as other users")
	limits := patient()
	limits.Changes = 0.001
	b := &addingBackend{fakeBackend: newFake()}
	socket := serve(t, b, limits)
	client := dialAs(t, socket, alice)
	var refused error
	for i := range uint32(changesAtOnce + 1) {
		refused = client.Watch(t.Context(), i+1)
	}
	wantFault(t, refused, clierror.General)
	if len(b.asked) != changesAtOnce {
		t.Errorf("%d changes were made, want %d", len(b.asked), changesAtOnce)
	}
	if err := dialAs(t, socket, bob).Watch(t.Context(), 5); err != nil {
		t.Errorf("bob is held up by alice: %v", err)
	}
}

// TestSlowRequestsOfOneUser: whoever holds all their connections with requests that never end keeps nobody else
// out, and is cut off.
func TestSlowRequestsOfOneUser(t *testing.T) {
	needs.Root(t, "it connects as other users")
	limits := patient()
	limits.Request = 100 * time.Millisecond
	socket := serve(t, newFake(), limits)
	stop := make(chan struct{})
	defer close(stop)
	var cut sync.WaitGroup
	for range limits.ConnectionsPerUser {
		conn, err := connectAs(t, socket, alice)
		must.NoError(t, err)
		defer conn.Close()
		go func() { // a byte at a time, for ever
			_, _ = conn.Write([]byte("GET /v1/status HTTP/1.1\r\nX: "))
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
					if _, err := conn.Write([]byte("a")); err != nil {
						return
					}
				}
			}
		}()
		cut.Go(func() {
			if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
				resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					t.Error("a request without an end was answered")
				}
			} else if errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
		})
	}
	for _, uid := range []uintptr{bob, 0} {
		if _, err := dialAs(t, socket, uid).Version(context.Background()); err != nil {
			t.Errorf("user %d is kept out: %v", uid, err)
		}
	}
	cut.Wait() // a hang here is the failure
}
