package archive

import (
	"fmt"
	"slices"
	"strings"
)

// Inspection describes a recording without reading its events.
type Inspection struct {
	Manifest   *Manifest
	Tables     []TableInfo // ordered by name
	Unfinished []string    // files that the manifest does not list although their tables are known: what a writer was about to add
	Unknown    []string    // other files; they are kept and ignored
	Missing    []string    // files that the manifest lists and that are not there
	Damaged    []string    // files whose size or sum is not that of the manifest; of sums only where all were verified
	Bytes      int64       // of all files
}

// TableInfo has the size of a table.
type TableInfo struct {
	Name  string `json:"name"`
	Doc   string `json:"holds"`
	Files int    `json:"files"`
	Rows  int    `json:"rows"`
	Bytes int64  `json:"bytes"`
	Event bool   `json:"events"` // its rows are events
	Known bool   `json:"known"`  // to this program
}

// Inspect looks at the recording in a folder or a packed one. With verify it reads every file and checks its sum.
func Inspect(place string, verify bool) (*Inspection, error) {
	s, err := openStore(place)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	in, err := inspect(s, verify)
	if err != nil {
		return nil, fmt.Errorf("look into recording %s: %w", place, err)
	}
	return in, nil
}

func inspect(s store, verify bool) (*Inspection, error) {
	m, err := readManifest(s)
	if err != nil {
		return nil, err
	}
	entries, err := s.list()
	if err != nil {
		return nil, err
	}
	in := &Inspection{Manifest: m, Tables: m.tables()}
	there := map[string]int64{}
	listed, known := m.files(), knownTables()
	for _, e := range entries {
		there[e.name] = e.bytes
		in.Bytes += e.bytes
		table, _, below := strings.Cut(e.name, "/")
		switch {
		case e.name == manifestName || listed[e.name]:
		case strings.HasSuffix(e.name, tempSuffix) || below && known[table]:
			in.Unfinished = append(in.Unfinished, e.name)
		default:
			in.Unknown = append(in.Unknown, e.name)
		}
	}
	in.compare(s, there, verify)
	return in, nil
}

// Verify compares the files of these tables of the recording at place with the sums in its manifest.
func Verify(place string, m *Manifest, tables []string) error {
	s, err := openStore(place)
	if err != nil {
		return err
	}
	defer s.Close()
	for _, t := range tables {
		for _, f := range m.Tables[t].Files {
			if err := verifyFile(s, &f); err != nil {
				return err
			}
		}
	}
	return nil
}

// compare holds the files against the manifest.
func (in *Inspection) compare(s store, there map[string]int64, verify bool) {
	for _, t := range in.Manifest.Tables {
		for _, f := range t.Files {
			bytes, found := there[f.Name]
			switch {
			case !found:
				in.Missing = append(in.Missing, f.Name)
			case bytes != f.Bytes:
				in.Damaged = append(in.Damaged, f.Name)
			case verify:
				if verifyFile(s, &f) != nil {
					in.Damaged = append(in.Damaged, f.Name)
				}
			}
		}
	}
	slices.Sort(in.Missing)
	slices.Sort(in.Damaged)
}

// tables returns what the manifest says of each table.
func (m *Manifest) tables() []TableInfo {
	docs, events := map[string]string{}, map[string]bool{}
	for _, t := range eventTables() {
		docs[t.name], events[t.name] = t.doc, true
	}
	for _, t := range nameTables() {
		docs[t.name] = t.doc
	}
	var out []TableInfo
	for name, t := range m.Tables {
		doc, known := docs[name]
		out = append(out, TableInfo{
			Name: name, Doc: doc, Files: len(t.Files), Rows: t.Rows(), Bytes: t.Bytes(), Event: events[name],
			Known: known,
		})
	}
	slices.SortFunc(out, func(a, b TableInfo) int { return strings.Compare(a.Name, b.Name) })
	return out
}
