package procfile

import "bytes"

// MapsLine is a line of /proc/PID/maps. Perms and Name are parts of the line.
type MapsLine struct {
	Start, End, Offset uint64
	Major, Minor       uint32 // of the device
	Inode              uint64
	Perms              []byte // four, such as "r-xp"
	Name               []byte // as printed: newlines escaped, " (deleted)" at the end
}

// ParseMapsLine reads "START-END rwxp OFFSET MAJOR:MINOR INODE   NAME", of which all but the name is the kernel's own
// text.
func ParseMapsLine(line []byte) (m MapsLine, ok bool) {
	s := scanner{rest: line}
	m.Start = s.hex('-')
	m.End = s.hex(' ')
	m.Perms = s.perms()
	m.Offset = s.hex(' ')
	m.Major = uint32(s.hex(':'))
	m.Minor = uint32(s.hex(' '))
	m.Inode = s.decimal()
	m.Name = bytes.TrimLeft(s.rest, " ")
	return m, !s.bad && m.Start < m.End
}

// scanner takes fields off the front of a line and remembers whether one was missing.
type scanner struct {
	rest []byte
	bad  bool
}

func (s *scanner) hex(end byte) uint64 {
	var n uint64
	for i, c := range s.rest {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | uint64(c-'0')
		case c >= 'a' && c <= 'f':
			n = n<<4 | uint64(c-'a'+10)
		case c == end && i > 0 && i <= 16:
			s.rest = s.rest[i+1:]
			return n
		default:
			s.bad = true
			return 0
		}
	}
	s.bad = true
	return 0
}

func (s *scanner) decimal() uint64 {
	var n uint64
	i := 0
	for i < len(s.rest) && i < 20 && s.rest[i] >= '0' && s.rest[i] <= '9' {
		n = n*10 + uint64(s.rest[i]-'0')
		i++
	}
	if i == 0 || (i < len(s.rest) && s.rest[i] != ' ') {
		s.bad = true
	}
	s.rest = s.rest[i:]
	return n
}

// perms takes four bytes, and the space after them.
func (s *scanner) perms() []byte {
	const length = 4
	if len(s.rest) <= length {
		s.bad = true
		return nil
	}
	p := s.rest[:length]
	s.rest = s.rest[length+1:]
	return p
}
