package overhead

import (
	"math"
	"slices"
)

// contrast is what a pair of neighbouring slices says: the sources that were on in one of them and
// reduced in the other, and how much slower the target got on in the first.
type contrast struct {
	effects []effect
	slower  float64 // log of the time that a unit of progress took in the first slice over that in the second
}

// effect is a source at the level whose cost is measured.
type effect struct {
	source, level int
	sign          float64 // 1: on in the first slice, -1: in the second
}

// column is an unknown of a fit: what a source costs at a level, as a share of the target's time.
type column struct{ source, level int }

// fitted is what the contrasts together say.
type fitted struct {
	rows    int
	columns []column
	mean    []float64
	cov     [][]float64
}

// Constants of the robust regression.
const (
	huberAt   = 1.345 // standard deviations from which on a residual counts less: 95% efficient for normal noise
	madNormal = 1.4826
	fitRounds = 20
	ridge     = 1e-9
)

// fit estimates what each source costs by regression on all contrasts at once: slower = sum of
// sign times cost, plus noise. Every pair switches several sources, so each pair says something of
// each. Huber's weights keep pauses of the target from deciding (Huber 1964); the covariance is
// that of Street, Carroll and Ruppert (1988).
func fit(rows []contrast) fitted {
	f := fitted{rows: len(rows)}
	x := make([][]float64, len(rows))
	for i := range rows {
		for _, e := range rows[i].effects {
			c := column{e.source, e.level}
			if !slices.Contains(f.columns, c) {
				f.columns = append(f.columns, c)
			}
		}
	}
	for i := range rows {
		x[i] = make([]float64, len(f.columns))
		for _, e := range rows[i].effects {
			x[i][slices.Index(f.columns, column{e.source, e.level})] = e.sign
		}
	}
	k := len(f.columns)
	if k == 0 || len(rows) <= k+1 {
		return fitted{rows: len(rows)}
	}
	f.solve(rows, x, k)
	return f
}

func (f *fitted) solve(rows []contrast, x [][]float64, k int) {
	weights := make([]float64, len(rows))
	for i := range weights {
		weights[i] = 1
	}
	residuals := make([]float64, len(rows))
	scale := 0.0
	for range fitRounds {
		xtx, xty := normal(rows, x, weights, k)
		before := f.mean
		f.mean = times(inverse(xtx), xty)
		for i := range rows {
			residuals[i] = rows[i].slower - dot(x[i], f.mean)
		}
		scale = spread(residuals, k)
		if scale == 0 || same(before, f.mean) {
			break
		}
		for i, r := range residuals {
			weights[i] = min(1, huberAt*scale/max(math.Abs(r), 1e-300))
		}
	}
	for i := range weights {
		weights[i] = 1
	}
	xtx, _ := normal(rows, x, weights, k)
	f.cov = inverse(xtx)
	variance := psiVariance(residuals, scale, k)
	for i := range f.cov {
		for j := range f.cov[i] {
			f.cov[i][j] *= variance
		}
	}
}

// same reports whether a round of the fit changed nothing that matters.
func same(before, after []float64) bool {
	for i := range before {
		if math.Abs(before[i]-after[i]) > 1e-6 {
			return false
		}
	}
	return len(before) > 0
}

// psiVariance is the variance of a Huber estimate's residuals, times which the inverse of the design is its covariance.
func psiVariance(residuals []float64, scale float64, k int) float64 {
	if scale == 0 {
		return 0
	}
	n := float64(len(residuals))
	square, inside := 0.0, 0.0
	for _, r := range residuals {
		u := r / scale
		if math.Abs(u) <= huberAt {
			inside++
		}
		u = min(max(u, -huberAt), huberAt)
		square += u * u
	}
	m := inside / n
	if m == 0 {
		return math.Inf(1)
	}
	correction := 1 + float64(k)/n*(1-m)/m
	return correction * correction * scale * scale * square / (n - float64(k)) / (m * m)
}

// few is below how many degrees of freedom a median of residuals is too often too small by chance.
const few = 12

// spread is the standard deviation of the residuals of a fit of k unknowns, by the median of their sizes.
func spread(residuals []float64, k int) float64 {
	sizes := make([]float64, len(residuals))
	square := 0.0
	for i, r := range residuals {
		sizes[i] = math.Abs(r)
		square += r * r
	}
	freedom := float64(len(residuals) - k)
	scale := madNormal * Median(sizes) * math.Sqrt(float64(len(residuals))/freedom)
	if freedom < few {
		scale = max(scale, math.Sqrt(square/freedom))
	}
	return scale
}

// Median returns the middle of v, or the mean of the two in the middle; 0 of nothing.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return (s[len(s)/2] + s[(len(s)-1)/2]) / 2
}

func normal(rows []contrast, x [][]float64, w []float64, k int) (xtx [][]float64, xty []float64) {
	xtx, xty = make([][]float64, k), make([]float64, k)
	for i := range xtx {
		xtx[i] = make([]float64, k)
		xtx[i][i] = ridge
	}
	for r := range rows {
		for i := range k {
			if x[r][i] == 0 {
				continue
			}
			xty[i] += w[r] * x[r][i] * rows[r].slower
			for j := range k {
				xtx[i][j] += w[r] * x[r][i] * x[r][j]
			}
		}
	}
	return xtx, xty
}

// inverse of a symmetric positive matrix, by Gauss and Jordan with pivots.
func inverse(m [][]float64) [][]float64 {
	n := len(m)
	a, out := make([][]float64, n), make([][]float64, n)
	for i := range m {
		a[i], out[i] = slices.Clone(m[i]), make([]float64, n)
		out[i][i] = 1
	}
	for c := range n {
		p := c
		for r := c + 1; r < n; r++ {
			if math.Abs(a[r][c]) > math.Abs(a[p][c]) {
				p = r
			}
		}
		a[c], a[p], out[c], out[p] = a[p], a[c], out[p], out[c]
		d := a[c][c]
		for j := range n {
			a[c][j] /= d
			out[c][j] /= d
		}
		for r := range n {
			if f := a[r][c]; r != c && f != 0 {
				for j := range n {
					a[r][j] -= f * a[c][j]
					out[r][j] -= f * out[c][j]
				}
			}
		}
	}
	return out
}

func times(m [][]float64, v []float64) []float64 {
	out := make([]float64, len(m))
	for i := range m {
		out[i] = dot(m[i], v)
	}
	return out
}

func dot(a, b []float64) float64 {
	sum := 0.0
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

// interval is an estimate with the bounds that matter.
type interval struct {
	mean   float64
	half   float64 // of the 95% interval at this moment: what people are told
	sure   float64 // of the interval that holds at all moments together with 95%: what is decided by
	rows   int     // pairs behind it
	exists bool
}

// of returns what the sources cost together at their present levels. Those that no pair has switched count nothing.
func (f *fitted) of(sources []column) interval {
	pick := make([]float64, len(f.columns))
	found := false
	for i, c := range f.columns {
		if slices.Contains(sources, c) {
			pick[i], found = 1, true
		}
	}
	if !found {
		return interval{}
	}
	error := math.Sqrt(max(0, dot(pick, times(f.cov, pick))))
	freedom := float64(f.rows - len(f.columns))
	t := studentT(freedom)
	return interval{
		mean:   dot(pick, f.mean),
		half:   t * error,
		sure:   error * timeUniform(f.rows) * t / normal975,
		rows:   f.rows,
		exists: true,
	}
}

// has reports whether a pair has switched this source at this level.
func (f *fitted) has(c column) bool { return slices.Contains(f.columns, c) }

const normal975 = 1.959964

// studentT returns the 97.5% point of Student's distribution, by the first terms of Fisher's expansion.
func studentT(freedom float64) float64 {
	z, v := normal975, max(freedom, 2)
	z3, z5, z7 := z*z*z, z*z*z*z*z, z*z*z*z*z*z*z
	return z + (z3+z)/(4*v) + (5*z5+16*z3+3*z)/(96*v*v) + (3*z7+19*z5+17*z3-15*z)/(384*v*v*v)
}

// Of the interval that may be looked at after every pair: tightest is after how many pairs it is at its best.
const (
	decideError = 0.05
	tightest    = 30
)

// timeUniform returns how many standard errors wide (to each side) an interval after n pairs is so that all of them,
// for every n, hold with 95% (the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas
// 2021). Looking after each pair at an ordinary interval would end in a wrong decision sooner or later.
func timeUniform(n int) float64 {
	a := -2 * math.Log(decideError)
	rho := (a + math.Log(a) + 1) / tightest
	m := float64(n) * rho
	return math.Sqrt(2 * (m + 1) / m * math.Log(math.Sqrt(m+1)/decideError))
}
