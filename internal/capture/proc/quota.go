package proc

// Quota shares a table of bounded size, from which nothing is ever removed, among those who fill it: each may hold as
// much as is still free. So one alone gets half of it, and whoever comes later always finds room. It is not safe for
// concurrent use.
type Quota struct {
	rows, bytes int // that the table holds at most
	total       usage
	used        map[Payer]usage
}

type usage struct{ rows, bytes int }

// NewQuota returns the quota of a table of so many rows and bytes.
func NewQuota(rows, bytes int) Quota {
	return Quota{rows: rows, bytes: bytes, used: map[Payer]usage{}}
}

// Take charges who for one row of so many bytes. It reports false, and charges nothing, where who has used up their
// share.
func (q *Quota) Take(who Payer, bytes int) bool {
	u := q.used[who]
	u.rows++
	u.bytes += bytes
	if u.rows > q.rows-q.total.rows || u.bytes > q.bytes-q.total.bytes {
		return false
	}
	q.used[who] = u
	q.total.rows++
	q.total.bytes += bytes
	return true
}
