package request

import "time"

// TapDetail returns what the state of the source says of engines once there is a request.
func (s *Source) TapDetail() string {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	return s.feed.taps.detail()
}

// Spent returns how long the programs at sockets have run since somebody switched on that the kernel counts it.
func (s *Source) Spent() (spent time.Duration, err error) {
	for _, name := range []string{"request_received", "request_sent", "request_state"} {
		stats, err := s.programs.coll.Programs[name].Stats()
		if err != nil {
			return 0, err
		}
		spent += stats.Runtime
	}
	return spent, nil
}

// Hooks returns the names of all hooks.
func Hooks() (names []string) {
	for _, h := range allHooks {
		names = append(names, h.name)
	}
	return names
}

// UseHooks has New try the hooks of this index only, and returns what undoes it.
func UseHooks(index int) (undo func()) {
	before := allHooks
	usedHooks = usedHooks[index : index+1]
	return func() { usedHooks = before }
}
