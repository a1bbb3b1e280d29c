package fleet

import (
	"context"
	"fmt"

	"github.com/inferscope/inferscope/internal/daemon/api"
)

// answer saves what an order asks for.
func (w *Worker) answer(ctx context.Context, o *save) *saved {
	paths, err := w.save(ctx, o.PID, o.Reason)
	out := &saved{ID: o.ID, Paths: paths}
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

// save writes all that the daemon remembers of a target, or of all where pid is 0, and returns where it is.
func (w *Worker) save(ctx context.Context, pid uint32, reason string) ([]string, error) {
	targets, err := w.client.Targets(ctx)
	if err != nil {
		return nil, err
	}
	var paths []string
	for i := range targets {
		if t := &targets[i]; t.Watched > 0 && (pid == 0 || t.PID == pid) {
			path, err := w.saveOne(ctx, t, reason)
			if err != nil {
				return paths, fmt.Errorf("saving what pid %d did: %w", t.PID, err)
			}
			if path != "" {
				paths = append(paths, path)
			}
		}
	}
	if len(paths) == 0 && pid != 0 {
		return nil, fmt.Errorf("nothing is known of a target with pid %d", pid)
	}
	return paths, nil
}

func (w *Worker) saveOne(ctx context.Context, t *api.Target, reason string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	rec, err := w.client.Recording(ctx, t.PID, api.Window{})
	if err != nil {
		return "", err
	}
	if err := w.shelf.room(); err != nil {
		return "", err
	}
	out, err := w.shelf.create(name(t, rec) + triggeredMark + reason)
	if err != nil {
		return "", err
	}
	if err := out.append(rec); err != nil {
		return "", err
	}
	return out.finish()
}
